"""Start of an epoch: claim, read, repair, write `start` (generators).

Nothing is taken from what was read before the claim held: what is acknowledged meanwhile would be missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from openclaw_tasks.checkpoint import paths
from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.commit import check_fence, highest_claim
from openclaw_tasks.checkpoint.documents import Claim, Process, Start
from openclaw_tasks.checkpoint.history import History, groups_beyond
from openclaw_tasks.checkpoint.lineage import Lineage
from openclaw_tasks.checkpoint.operations import (
    Pause,
    Steps,
    create_everywhere,
    list_everywhere,
    name_problem,
    require,
)
from openclaw_tasks.checkpoint.repair import repair
from openclaw_tasks.errors import DataLossError, JobError, NotDurableError

CLAIM_TRIES = 8


@dataclass(frozen=True, slots=True)
class Starter:
    """Who starts which run, and what its start document is to say."""

    run: str
    code: Code
    writer: str
    process: Process
    target_uuids: Sequence[str]
    job: Mapping[str, Any]
    identity: Mapping[str, Any]
    reason: str = "resume"


@dataclass(frozen=True, slots=True)
class Rollback:
    """Where to cut the history: its last step from now on, and steps never to compute again."""

    end_step: int
    skip: Sequence[int] = ()


def claim_epoch(starter: Starter, *, jitter: Callable[[], float]) -> Steps[int]:
    """Claim the epoch after the highest one seen, with at least W targets; a lost race is tried again.

    jitter: seconds to let pass after a lost race.
    """
    code, run = starter.code, starter.run
    for _ in range(CLAIM_TRIES):
        listing = yield from list_everywhere(code, paths.claim_prefix(run))
        require(f"run {run!r}: claims", listing.keys, code.read_quorum, listing.problems)
        epoch = highest_claim(run, listing.keys) + 1
        claim = Claim(run=run, epoch=epoch, writer=starter.writer, process=starter.process)
        written = yield from create_everywhere(code, claim.key, claim.to_bytes())
        if len(written.acked) >= code.write_quorum:
            return epoch
        if not written.taken:
            require(f"run {run!r}: claim of epoch {epoch}", written.acked, code.write_quorum, written.problems)
        yield [Pause(jitter())]
    raise NotDurableError(f"run {run!r}: other writers were first at each of {CLAIM_TRIES} claims; try again")


def start_epoch(
    starter: Starter, epoch: int, history: History, rollback: Rollback | None = None
) -> Steps[tuple[Start, History]]:
    """Adopt `history`, read after the claim of `epoch`: repair it, then write the start document."""
    refuse_if_stuck(history)
    adopted = adopt(history, rollback)
    yield from repair(adopted)
    start = start_document(starter, epoch, adopted)
    written = yield from create_everywhere(starter.code, start.key, start.to_bytes())
    require(f"run {starter.run!r}: {start.key}", written.acked, starter.code.write_quorum, written.problems)
    yield from check_fence(starter.code, starter.run, epoch)
    return start, adopted


def refuse_if_stuck(history: History) -> None:
    """DataLossError, or NotDurableError where waiting may help, unless the history is all there."""
    if history.stuck is None:
        return
    run = history.survey.run
    if history.stuck.is_lost:
        raise DataLossError(
            f"run {run!r}: {history.stuck.message}; more is gone than {history.code.m} targets can replace"
        )
    silent = "; ".join(name_problem(target, error) for target, error in sorted(history.survey.problems.items()))
    raise NotDurableError(f"run {run!r}: {history.stuck.message}; waiting for targets to answer ({silent})")


def adopt(history: History, rollback: Rollback | None) -> History:
    """The part of `history` to go on from. Bases ahead of the log are left: their step is computed again.

    JobError for a rollback to a step that is not there.
    """
    lineage = history.lineage
    end_step = lineage.end_step if rollback is None else rollback.end_step
    bases = tuple(base for base in history.bases if base.ref.step <= end_step)
    if rollback is not None and (end_step > lineage.end_step or not bases):
        steps = [base.ref.step for base in history.bases]
        raise JobError(
            f"run {history.survey.run!r} cannot go back to step {end_step}: its log ends at "
            f"{lineage.end_step}, its bases are of steps {steps}"
        )
    skip = lineage.skip if rollback is None else sorted({*lineage.skip, *rollback.skip})
    kept = tuple(ref for ref in lineage.groups if ref.first <= end_step)
    needed = [ref for ref in lineage.groups if ref.last > lineage.floor]
    payloads = tuple(payload for ref, payload in zip(needed, history.groups, strict=True) if ref.first <= end_step)
    cut = Lineage(
        epoch=lineage.epoch,
        writer=lineage.writer,
        groups=groups_beyond(kept, lineage.floor),
        bases=tuple(base.ref for base in bases),
        skip=tuple(skip),
        floor=lineage.floor,
        end_step=end_step,
        identity=lineage.identity,
        job=lineage.job,
    )
    return replace(history, lineage=cut, groups=payloads, bases=bases)


def start_document(starter: Starter, epoch: int, history: History) -> Start:
    lineage = history.lineage
    return Start(
        run=starter.run,
        epoch=epoch,
        writer=starter.writer,
        n=starter.code.n,
        m=starter.code.m,
        target_uuids=tuple(starter.target_uuids),
        parent=history.start.key if history.start is not None else None,
        groups=lineage.groups,
        bases=lineage.bases,
        skip=lineage.skip,
        floor=lineage.floor,
        end_step=lineage.end_step,
        reason=starter.reason,
        job=dict(starter.job),
        identity=dict(starter.identity),
        process=starter.process,
    )
