"""Rebuilding a state from a base and the log, and proving bases against it (needs torch)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from openclaw_tasks.checkpoint.lineage import BaseRef
from openclaw_tasks.errors import DataLossError, DigestMismatchError, NotDurableError, RunError
from openclaw_tasks.exact.apply import apply
from openclaw_tasks.exact.fingerprint import arithmetic_fingerprint
from openclaw_tasks.exact.snapshot import Snapshot

if TYPE_CHECKING:
    from openclaw_tasks.checkpoint.documents import BaseManifest
    from openclaw_tasks.checkpoint.reader import RunReader
    from openclaw_tasks.exact.state import TrainState


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What `rebuild_state` did."""

    step: int
    base: BaseRef
    records_applied: int


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Outcome for one step. "other-arithmetic": the bits differ, but this machine computes others than the run's."""

    step: int
    outcome: Literal["verified", "other-arithmetic"]
    weights_digest: str
    state_digest: str
    base: BaseRef


def rebuild_state(
    reader: RunReader, state: TrainState, step: int | None = None, *, on_record: Callable[[], None] | None = None
) -> Rebuilt:
    """Restore `state` to `step` (default: the last durable one): newest base at or before it, then its records.

    A base that fails to load is passed over for an older one (`reader.warnings` says so; llnl/scr#174).
    on_record: called after each record.
    Raises DataLossError; DamagedError naming step and group; NotDurableError when targets do not answer.
    """
    target = reader.last_step if step is None else step
    base = _restore_newest(reader, state, target)
    applied = _replay(reader, state, target, on_record)
    return Rebuilt(target, base, applied)


def verify_run(
    reader: RunReader, make_state: Callable[[], TrainState], step: int | None = None, *, fewest: bool = True
) -> VerifyResult:
    """Decode bases from the fewest stripes, replay the log from one to the next, and compare with their digests.

    step: prove this one, from the base before the newest one up to it; None: all that is kept, to the last step.
    Every base on the way is decoded and compared too.
    Raises DigestMismatchError (but see VerifyResult for another arithmetic), DataLossError, DamagedError.
    """
    target = reader.last_step if step is None else step
    bases = sorted((ref for ref in reader.lineage.bases if ref.step <= target), key=lambda ref: (ref.step, ref.epoch))
    if not bases:
        reader.choose_base(target)  # raises, naming what there is
    if step is not None:
        earlier = [ref for ref in bases if ref.step < bases[-1].step]
        bases = [ref for ref in bases if not earlier or ref.step >= earlier[-1].step]
    state = make_state()
    state.restore(_decode(reader, bases[0], fewest))
    mismatch: DigestMismatchError | None = None
    for ref in bases[1:]:
        _replay(reader, state, ref.step, None, fewest=fewest)
        try:
            _compare(reader.run, state, reader.manifest(ref))
        except DigestMismatchError as error:
            if not _is_other_arithmetic(reader, bases[0].step, ref.step):
                raise
            mismatch = error
        snapshot = _decode(reader, ref, fewest)
        if mismatch is not None:
            state.restore(snapshot)  # from here on the log is replayed onto the run's own bits
    _replay(reader, state, target, None, fewest=fewest)
    weights, whole = state.digests()
    outcome: Literal["verified", "other-arithmetic"] = "verified" if mismatch is None else "other-arithmetic"
    return VerifyResult(target, outcome, weights, whole, bases[-1])


def _restore_newest(reader: RunReader, state: TrainState, target: int) -> BaseRef:
    failure: RunError | None = None
    while True:
        try:
            base = reader.choose_base(target)
        except DataLossError as error:
            raise failure or error from failure
        try:
            objects, plain, manifest = reader.read_base(base)
            state.restore(Snapshot(base.step, manifest.applied, dict(objects), plain))
        except NotDurableError:
            raise  # cannot be read now: that says nothing of the base
        except RunError as error:
            failure = failure or error
            reader.pass_over(base, str(error))
        else:
            return base


def _decode(reader: RunReader, base: BaseRef, fewest: bool) -> Snapshot:
    """The base's snapshot, whose digests are those that its writer named."""
    objects, plain, manifest = reader.read_base(base, fewest=fewest)
    snapshot = Snapshot(base.step, manifest.applied, dict(objects), plain)
    if snapshot.digests() != (manifest.weights_digest, manifest.state_digest):
        raise DigestMismatchError(
            f"run {reader.run!r}: the base of step {base.step} holds another state than its manifest names"
        )
    return snapshot


def _replay(
    reader: RunReader,
    state: TrainState,
    target: int,
    on_record: Callable[[], None] | None,
    *,
    fewest: bool = False,
) -> int:
    applied = 0
    for record in reader.records(state.step + 1, target, fewest=fewest):
        apply(state, record)
        applied += 1
        if on_record is not None:
            on_record()
    return applied


def _compare(run: str, state: TrainState, manifest: BaseManifest) -> None:
    found = state.digests()
    reported = (manifest.weights_digest, manifest.state_digest)
    if found != reported:
        raise DigestMismatchError(
            f"run {run!r}, step {state.step}: the replayed state is {found[1]}, the ranks reported {reported[1]}"
        )


def _is_other_arithmetic(reader: RunReader, first: int, last: int) -> bool:
    """Whether an epoch that wrote steps after `first` up to `last` computed on another arithmetic than we do."""
    here = arithmetic_fingerprint(torch.get_num_threads())
    epochs = {(ref.epoch, ref.writer) for ref in reader.lineage.groups if ref.last > first and ref.first <= last}
    return any(there != here for there in _arithmetics(reader, epochs))


def _arithmetics(reader: RunReader, epochs: Iterable[tuple[int, str]]) -> Iterable[dict[str, str]]:
    for epoch, writer in sorted(epochs):
        text = reader.identity_at(epoch, writer).get("fingerprints", {}).get("arithmetic")
        if text is not None:
            yield json.loads(text)
