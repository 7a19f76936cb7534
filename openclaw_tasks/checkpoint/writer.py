"""Holding a run and writing to it: claim, heartbeat, groups, bases, repair, retention.

`RunWriter` lives in the flow's process. `put_group` and `put_base` are what a putter calls in any process; they
need only the targets and a spec.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from openclaw_tasks.checkpoint import driver
from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.commit import commit_note
from openclaw_tasks.checkpoint.documents import BaseNote, Start
from openclaw_tasks.checkpoint.history import (
    History,
    groups_beyond,
    read_history,
    read_known_history,
    read_newest_start,
)
from openclaw_tasks.checkpoint.holder import Fence, Heartbeat, await_lease, this_process
from openclaw_tasks.checkpoint.lineage import BaseRef, BaseSpec, GroupSpec, Lineage
from openclaw_tasks.checkpoint.mending import Mender, Patience
from openclaw_tasks.checkpoint.operations import Steps
from openclaw_tasks.checkpoint.paths import BaseMark
from openclaw_tasks.checkpoint.put import BaseResult, GroupResult, put_base, put_group
from openclaw_tasks.checkpoint.repair import repair
from openclaw_tasks.checkpoint.retention import choose_floor, retain
from openclaw_tasks.checkpoint.start import Rollback, Starter, claim_epoch, refuse_if_stuck, start_epoch
from openclaw_tasks.errors import FencedError

if TYPE_CHECKING:
    from openclaw_tasks.storage.targets import TargetSet

T = TypeVar("T")
PIN_LEASE_SECONDS = 60.0

__all__ = ["BaseResult", "GroupResult", "RunWriter", "put_base", "put_group"]


class RunWriter:
    """The right to write one run, from `start` to `release` or until fenced. Thread-safe."""

    def __init__(
        self,
        targets: TargetSet,
        code: Code,
        start: Start,
        history: History,
        heartbeat: Heartbeat,
        fence: Fence,
    ) -> None:
        """Use `RunWriter.start`."""
        self.run = start.run
        self.epoch = start.epoch
        self.writer = start.writer
        self.fenced = fence.is_lost
        """Set when a newer epoch was seen."""
        known = set(targets.problems.values())
        self.warnings = [_with_url(note, targets) for note in history.notes if note not in known]
        """What was found wrong and goes on; that targets are absent is in `targets.problems`."""
        self.is_new = not history.lineage.bases
        """True when no base was found: the caller puts base 0."""
        self._targets = targets
        self._code = code
        self._start = start
        self._heartbeat = heartbeat
        self._fence = fence
        self._lock = threading.RLock()
        self._lineage = replace(history.lineage, epoch=start.epoch, writer=start.writer, job=start.job)
        self._attempts = 0
        self._base_attempts = 0
        self._mender = Mender(self.repair, lambda: bool(heartbeat.failing))
        heartbeat.on_return = self._mender.tell_return
        self._pins: dict[str, tuple[int, float]] = {}
        heartbeat.tell(durable_step=self._lineage.end_step)

    @classmethod
    def start(
        cls,
        targets: TargetSet,
        run: str,
        *,
        redundancy: int,
        identity: Mapping[str, Any],
        job: Mapping[str, Any],
        check_identity: Callable[[Mapping[str, Any]], None] | None = None,
        lease_seconds: float = 10.0,
        wait_seconds: float = 30.0,
        end_step: int | None = None,
        skip: Sequence[int] = (),
        on_fenced: Callable[[], None] | None = None,
    ) -> RunWriter:
        """Claim the run, adopt its history, repair it, and start a heartbeat.

        identity: JSON-able facts fixed for the run's life; `check_identity(previous)` is called with those
        of the last start (if any) before anything is changed, and raises what it likes.
        wait_seconds: how long to wait for unreachable targets that may hold acknowledged groups.
        end_step, skip: a rollback: the history ends after `end_step`, and `skip` are not to be computed.

        Raises RunLiveError, DataLossError, NotDurableError, FencedError; JobError for another redundancy or
        number of targets than the run's.
        """
        code = Code(len(targets.urls), redundancy)
        patience = Patience(wait_seconds)
        previous = patience.insist(lambda: driver.run(read_newest_start(run, code), targets))
        if previous is not None and check_identity is not None:
            check_identity(previous.identity)
        patience.insist(lambda: await_lease(targets, run, lease_seconds=lease_seconds))
        rollback = None if end_step is None else Rollback(end_step, skip)
        starter = Starter(
            run=run,
            code=code,
            writer=secrets.token_hex(4),
            process=this_process(),
            target_uuids=_uuids(targets, previous),
            job=dict(job),
            identity=dict(identity),  # after the check, which may complete it
            reason="rollback" if rollback else "resume" if previous else "first",
        )
        epoch = patience.insist(lambda: driver.run(claim_epoch(starter, jitter=_jitter), targets))
        fence = Fence(on_fenced)
        heartbeat = Heartbeat(targets, run, epoch, starter.writer, on_fenced=fence.lose)
        try:
            start, history = patience.insist(lambda: driver.run(_read_and_start(starter, epoch, rollback), targets))
        except BaseException as error:
            heartbeat.stop(release=not isinstance(error, FencedError))
            raise
        return cls(targets, code, start, history, heartbeat, fence)

    @property
    def lineage(self) -> Lineage:
        """The history as acknowledged so far."""
        with self._lock:
            return self._lineage

    @property
    def durable_step(self) -> int:
        """Last step of the contiguous acknowledged history."""
        return self.lineage.end_step

    @property
    def can_be_read(self) -> bool:
        """Whether enough targets answered their last heartbeat to rebuild a state from what they hold."""
        absent = sum(store is None for store in self._targets.stores)
        return absent + len(self._heartbeat.failing) <= self._code.m

    def group_spec(self, first: int, last: int, codec: str) -> GroupSpec:
        """Spec of the next group to put; a repeat of an unacknowledged one gets a new attempt.

        Groups go one after the other: ask for the next one only after `record_group` of this one.
        """
        with self._lock:
            assert first == self._lineage.end_step + 1, (first, self._lineage.end_step)
            assert self._lineage.bases, "the first base is put before the first group"
            self._attempts += 1
            before = self._lineage.groups[-1] if self._lineage.groups else None
            return GroupSpec(
                run=self.run,
                epoch=self.epoch,
                writer=self.writer,
                seq=before.seq + 1 if before else 1,
                attempt=self._attempts,
                first=first,
                last=last,
                previous=before.digest if before else "",
                codec=codec,
                redundancy=self._code.m,
            )

    def record_group(self, result: GroupResult) -> None:
        """Take an acknowledged group into the lineage; one that does not continue it (a late report) is ignored."""
        ref = result.ref
        with self._lock:
            before = self._lineage.groups[-1] if self._lineage.groups else None
            expected = (self.epoch, self.writer, before.seq + 1 if before else 1, before.digest if before else "")
            if (ref.epoch, ref.writer, ref.seq, ref.previous) != expected or ref.first != self.durable_step + 1:
                return
            self._lineage = replace(self._lineage, groups=(*self._lineage.groups, ref), end_step=ref.last)
            self._attempts = 0
        self._heartbeat.tell(durable_step=ref.last)
        if result.degraded:
            self._mender.tell_degraded()

    def base_spec(self, step: int) -> BaseSpec:
        """Spec of the base of `step`; each call is a new attempt. Only durable steps can be resumed from."""
        with self._lock:
            self._base_attempts += 1
            return BaseSpec(
                run=self.run,
                epoch=self.epoch,
                writer=self.writer,
                step=step,
                attempt=self._base_attempts,
                redundancy=self._code.m,
            )

    def record_base(self, result: BaseResult) -> None:
        """Take an acknowledged base into the lineage."""
        with self._lock:
            if result.ref not in self._lineage.bases:
                bases = sorted((*self._lineage.bases, result.ref), key=_by_step)
                self._lineage = replace(self._lineage, bases=tuple(bases))
        if result.degraded:
            self._mender.tell_degraded()

    def mark_verified(self, step: int, facts: Mapping[str, Any]) -> None:
        """Write the `.verified.json` of the base of `step`. Raises FencedError, NotDurableError."""
        base = self._note(step, "verified", facts)
        with self._lock:
            bases = tuple(replace(ref, verified=True) if ref == base else ref for ref in self._lineage.bases)
            self._lineage = replace(self._lineage, bases=bases)

    def quarantine_base(self, step: int, reason: str) -> None:
        """Never offer the base of `step` again. Raises FencedError, NotDurableError."""
        base = self._note(step, "quarantined", {"reason": reason})
        with self._lock:
            bases = tuple(ref for ref in self._lineage.bases if ref != base)
            self._lineage = replace(self._lineage, bases=bases)

    def repair(self, *, deep_bytes: int = 0) -> int:
        """Put what reachable targets lack of the history back onto them; number of objects put.

        deep_bytes: read every stripe, to find damaged ones too, when all together have at most so many bytes.
        Raises FencedError, NotDurableError, DataLossError.
        """
        return self._drive(_read_and_repair(self._as_start(), deep_bytes), may_skip=0)

    def retain(self, *, grace_seconds: float = 1.0, pin_lease_seconds: float = PIN_LEASE_SECONDS) -> int:
        """Keep two verified bases and the log back to the older one; number of keys deleted.

        A pin whose counter has stood still for `pin_lease_seconds`, on our clock, has lost its reader.
        Raises FencedError, NotDurableError.
        """
        lineage = self.lineage
        floor = choose_floor(lineage.bases, lineage.end_step)
        if floor is None:
            return 0
        steps = retain(
            self._code,
            self.run,
            self.epoch,
            self.writer,
            floor,
            expired=self._expired_pins(pin_lease_seconds),
            grace_seconds=grace_seconds,
        )
        with self._lock:
            # From the announcement on nobody asks for what lies before, even if this pass fails half-way.
            self._lineage = _raise_floor(self._lineage, floor)
        retained = self._drive(steps, may_skip=self._code.m)
        with self._lock:
            now = time.monotonic()
            self._pins = {
                pin: self._pins[pin] if self._pins.get(pin, (None, 0.0))[0] == counter else (counter, now)
                for pin, counter in retained.pins.items()
            }
        return retained.keys_deleted

    def set_agents(self, agents: Sequence[Mapping[str, Any]]) -> None:
        """Processes ({"pid": ...}) that flush on their own when this one dies; a takeover waits for them."""
        self._heartbeat.tell(agents=agents)

    def release(self) -> None:
        """Stop the heartbeat and say in `holder.json` that the run is free. Never raises for a bad target."""
        self._mender.stop()
        self._heartbeat.stop(release=not self.fenced.is_set())

    def _note(self, step: int, mark: BaseMark, facts: Mapping[str, Any]) -> BaseRef:
        found = [ref for ref in self.lineage.bases if ref.step == step]
        assert found, f"no base of step {step}"
        base = max(found, key=_by_step)
        note = BaseNote(run=self.run, step=step, epoch=base.epoch, writer=base.writer, mark=mark, facts=dict(facts))
        self._drive(commit_note(self._code, self.epoch, note), may_skip=self._code.m)
        return base

    def _drive(self, steps: Steps[T], *, may_skip: int) -> T:
        try:
            return driver.run(steps, self._targets, may_skip=may_skip)
        except FencedError:
            self._fence.lose()
            raise

    def _expired_pins(self, lease_seconds: float) -> frozenset[str]:
        now = time.monotonic()
        return frozenset(pin for pin, (_, since) in self._pins.items() if now - since >= lease_seconds)

    def _as_start(self) -> Start:
        """What our start document would say if it were written now."""
        lineage = self.lineage
        return self._start.model_copy(
            update={
                "groups": lineage.groups,
                "bases": lineage.bases,
                "floor": lineage.floor,
                "end_step": lineage.end_step,
            }
        )


def _jitter() -> float:
    return random.uniform(0.05, 0.5)


def _read_and_start(starter: Starter, epoch: int, rollback: Rollback | None) -> Steps[tuple[Start, History]]:
    history = yield from read_history(starter.run, starter.code.n, starter.code)
    return (yield from start_epoch(starter, epoch, history, rollback))


def _read_and_repair(start: Start, deep_bytes: int) -> Steps[int]:
    history = yield from read_known_history(start, deep_bytes=deep_bytes)
    if history.survey.claimed_epoch > start.epoch:
        raise FencedError(f"run {start.run!r}: epoch {history.survey.claimed_epoch} was claimed by another writer")
    refuse_if_stuck(history)
    return (yield from repair(history))


def _raise_floor(lineage: Lineage, floor: int) -> Lineage:
    return replace(
        lineage,
        floor=max(floor, lineage.floor),
        bases=tuple(ref for ref in lineage.bases if ref.step >= floor),
        groups=groups_beyond(lineage.groups, floor),
    )


def _by_step(ref: BaseRef) -> tuple[int, int]:
    return ref.step, ref.epoch


def _uuids(targets: TargetSet, previous: Start | None) -> list[str]:
    """The targets' identities; of absent ones those that the last start knew."""
    known = previous.target_uuids if previous is not None else [""] * len(targets.uuids)
    return [uuid or old for uuid, old in zip(targets.uuids, known, strict=True)]


def _with_url(note: str, targets: TargetSet) -> str:
    """A note on a target, with its place."""
    for index, url in enumerate(targets.urls):
        if note.startswith(f"target {index}: ") and url not in note:
            return note.replace(f"target {index}: ", f"target {index} ({url}): ", 1)
    return note
