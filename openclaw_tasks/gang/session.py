"""One attempt of a run in this process: its gang, its right to write, its events. Stages find it by the run's name.

Prefect passes small values between stages; what cannot travel (sockets, threads, a lease) lives here, from the
flow's first stage to its last.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from openclaw_tasks.config.faults import Fault, parse_faults
from openclaw_tasks.config.home import write_entry
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.errors import DigestMismatchError, OpenClawError, RunError
from openclaw_tasks.gang.claim import claim_run
from openclaw_tasks.gang.gang import Gang
from openclaw_tasks.gang.placing import DaskPlacement, Placement
from openclaw_tasks.observe.events import EventLog

STOP_SECONDS = 8.0  # for the ranks to end their step and the log to be flushed, when a run is interrupted

_sessions: dict[str, Session] = {}
_offered: dict[str, EventLog] = {}


class Session:
    """Use through `open_session`."""

    def __init__(
        self, job: TrainJob, placement: Placement, events: EventLog, faults: Sequence[Fault], accept_new_data: bool
    ) -> None:
        self.job = job
        self.events = events
        self.gang = Gang(job, placement, events, tuple(faults))
        self._accept_new_data = accept_new_data
        self._stack = contextlib.ExitStack()
        self.resumed_step = 0
        self.unverified_bases: tuple[int, ...] = ()

    def claim(self, nodes: dict[str, dict[str, Any]], flow_run_id: str | None) -> None:
        """Make the run ours, resuming where storage has it, and start the ranks."""
        claimed = claim_run(self.job, nodes, self.events, accept_new_data=self._accept_new_data)
        self.writer = claimed.writer
        self._stack.callback(self.writer.release)
        self.resumed_step = self.writer.durable_step
        self.verified_bases = {base.step for base in self.writer.lineage.bases if base.verified}
        self.events.emit(
            "attempt-started",
            planned_steps=self.job.steps,
            resumed_step=self.resumed_step,
            recipe=self.job.recipe,
            flow_run_id=flow_run_id,
        )
        for warning in claimed.warnings:
            self.events.emit("warning", text=warning)
        self.gang.begin(self.writer)

    def boundaries(self) -> list[int]:
        """The segments' ends that are left to reach or to prove."""
        ends = [*range(self.job.segment_steps, self.job.steps, self.job.segment_steps), self.job.steps]
        proven = max(self.verified_bases, default=0)
        return [step for step in ends if step > proven]

    def prove(self, step: int) -> bool:
        """Verify a boundary on an agent's spare process, and let go of what the proof makes needless.

        Raises DigestMismatchError, DataLossError, DamagedError.
        """
        try:
            found = self.gang.spare("verify", {"step": step})
        except DigestMismatchError as error:
            self.events.emit("verified", step=step, ok=False, reason=str(error))
            self.writer.quarantine_base(step, str(error))
            raise
        proven: bool = found["outcome"] == "verified"
        self.events.emit("verified", step=step, ok=proven, reason=None if proven else found["outcome"])
        if proven:
            self.gang.note_verified(step, found)
            self.writer.mark_verified(step, {"state_digest": found["state_digest"]})
            self.writer.retain()
        return proven

    def finish(self) -> None:
        """Everything is in storage: book the end of the run."""
        steps = self.job.steps
        self.gang.wait_for_durable(steps)
        digests = self.gang.board.read(lambda facts: facts.digests.get(steps, {}))
        size = self.gang.board.read(lambda facts: facts.full_checkpoint_bytes)
        self.events.emit("finished", final_step=steps, full_checkpoint_bytes=size, **digests)
        write_entry(self.job, state="finished", step=steps)

    @contextlib.contextmanager
    def stage(self, name: str, segment: int | None = None, attempt: int = 1) -> Iterator[None]:
        """The body is a stage: its time goes into the event log."""
        begun = time.monotonic()
        try:
            yield
        finally:
            seconds = round(time.monotonic() - begun, 3)
            self.events.emit("stage", name=name, segment=segment, seconds=seconds, stage_attempt=attempt)

    def close(self) -> None:
        """End every process of the run, flush its log, give it free."""
        try:
            self.gang.close()
        finally:
            self._stack.close()


def begin_session(
    job: TrainJob, faults: Sequence[str], accept_new_data: bool
) -> contextlib.AbstractContextManager[Session]:
    """A session on Dask workers, with the faults parsed and checked. Raises JobError."""
    events = _offered.get(job.run) or EventLog(job.run)
    return open_session(job, DaskPlacement(job), events, parse_faults(faults, job), accept_new_data)


@contextlib.contextmanager
def offer_events(events: EventLog) -> Iterator[None]:
    """The next session of this run in this process writes into `events`, so that its caller can listen."""
    _offered[events.run] = events
    try:
        yield
    finally:
        del _offered[events.run]


@contextlib.contextmanager
def open_session(
    job: TrainJob,
    placement: Placement,
    events: EventLog,
    faults: Sequence[Fault] = (),
    accept_new_data: bool = False,
) -> Iterator[Session]:
    """The session of one attempt. Whatever ends the body, no process of the run is left after it."""
    if job.run in _sessions:
        raise RunError(f"run {job.run!r} is being trained by this process already")
    session = Session(job, placement, events, faults, accept_new_data)
    _sessions[job.run] = session
    try:
        with session.gang:
            yield session
    except OpenClawError as error:
        session.events.emit("failed", error=str(error))
        raise
    except BaseException as error:  # Ctrl-C, SIGTERM, a cancel: end in order, so that the run can be resumed
        session.events.emit("failed", error=f"interrupted: {type(error).__name__}")
        with contextlib.suppress(OpenClawError):
            session.gang.stop(STOP_SECONDS)
        raise
    finally:
        del _sessions[job.run]
        session.close()


def session_of(run: str) -> Session:
    """The open session of a run in this process."""
    return _sessions[run]
