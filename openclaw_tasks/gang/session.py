"""One attempt of a run in this process: its gang, its right to write, its events. Stages find it by the run's name.

Prefect passes small values between stages; what cannot travel (sockets, threads, a lease) lives here, from the
flow's first stage to its last.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any

from openclaw_tasks import interruption
from openclaw_tasks.checkpoint.reader import RunReader
from openclaw_tasks.checkpoint.writer import RunWriter
from openclaw_tasks.config.faults import Fault, parse_faults
from openclaw_tasks.config.home import run_folder, write_entry
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.errors import (
    DigestMismatchError,
    FencedError,
    GangLostError,
    NotDurableError,
    OpenClawError,
    RunCancelledError,
    RunError,
)
from openclaw_tasks.gang.claim import claim_run
from openclaw_tasks.gang.gang import Gang
from openclaw_tasks.gang.placing import DaskPlacement, Placement
from openclaw_tasks.gang.zygote import Zygote
from openclaw_tasks.observe.events import Event, EventLog
from openclaw_tasks.observe.logs import RunLogging, log_path
from openclaw_tasks.observe.narration import narrate
from openclaw_tasks.storage.targets import open_targets

STOP_SECONDS = 8.0  # for the ranks to end their step and the log to be flushed, when a run is interrupted

Log = logging.Logger | logging.LoggerAdapter[logging.Logger]

logger = logging.getLogger(__name__)

_sessions: dict[str, Session] = {}
_offered: dict[str, Session] = {}


class Session:
    """Use through `open_session`."""

    def __init__(
        self, job: TrainJob, placement: Placement, events: EventLog, faults: Sequence[Fault], accept_new_data: bool
    ) -> None:
        self.job = job
        self.events = events
        self.gang = Gang(job, placement, events, tuple(faults))
        self._faults = tuple(faults)
        self._accept_new_data = accept_new_data
        self._stack = contextlib.ExitStack()
        self._threads = ThreadPoolExecutor(2, "session")
        self._opening: Future[Gang] | None = None
        self._early_stages: list[dict[str, Any]] = []  # told when the run is ours: a refused start leaves no events
        self.writer: RunWriter | None = None
        self.ended_by: BaseException | None = None
        self.resumed_step = 0
        self.verified_bases: set[int] = set()

    def claim(self, nodes: dict[str, dict[str, Any]], flow_run_id: str | None, page: str | None = None) -> None:
        """Make the run ours, resuming where storage has it, and start the ranks."""
        claimed = claim_run(self.job, nodes, self.events, accept_new_data=self._accept_new_data)
        self.writer = writer = claimed.writer
        self.resumed_step = writer.durable_step
        self.verified_bases = {base.step for base in writer.lineage.bases if base.verified}
        self.events.emit(
            "attempt-started",
            planned_steps=self.job.steps,
            resumed_step=self.resumed_step,
            recipe=self.job.recipe,
            flow_run_id=flow_run_id,
            page=page,
        )
        for stage in self._early_stages:
            self.events.emit("stage", **stage)
        for warning in claimed.warnings:
            self.events.emit("warning", text=warning)
        spare = self.job.store.redundancy - len(claimed.missing)
        for index, why in claimed.missing.items():
            self.events.emit("storage", target=index, problem=why, spare=spare)
        for fault in self._faults:
            if fault.step <= self.resumed_step:
                text = f"fault {fault.text()} will not strike: step {fault.step} is behind this start"
                self.events.emit("warning", text=text)
        self.gang.board.update(lambda facts: setattr(facts, "missing_targets", frozenset(claimed.missing)))
        self.gang.begin(writer)

    def boundaries(self) -> list[int]:
        """The segments' ends that are left to reach or to prove."""
        ends = [*range(self.job.segment_steps, self.job.steps, self.job.segment_steps), self.job.steps]
        proven = max(self.verified_bases, default=0)
        return [step for step in ends if step > proven]

    def train_to(self, step: int, attempt: int) -> None:
        """Wait until the gang has trained to `step`; after the loss of every rank, start a fresh one first.

        Raises GangLostError, which says which `attempt` (from 1) that was, or the run's error.
        """
        tries = f"attempt {attempt} of {self.job.fault_tolerance.max_retries + 1} to reach step {step}"
        if self.gang.begin_again():
            durable = self.gang.board.read(lambda facts: facts.durable_step)
            self.events.emit("warning", text=f"a fresh gang goes on after step {durable}, from storage; {tries}")
        try:
            self.gang.wait_for_step(step)
        except GangLostError as error:
            logs = run_folder(self.job.run) / "logs"
            raise GangLostError(f"{error}; {tries}; what its processes said is in {logs}") from error
        write_entry(self.job, state="running", step=step)

    def prove(self, step: int) -> bool:
        """Verify a boundary on an agent's spare process, and let go of what the proof makes needless.

        Raises DigestMismatchError, DataLossError, DamagedError.
        """
        writer = self.writer
        assert writer is not None
        refused = self.gang.board.read(lambda facts: facts.bases_refused.get(step))
        if refused is not None:
            self.events.emit("verified", step=step, ok=False, reason=f"no base: {refused}")
            return False
        try:
            found = self.gang.spare("verify", {"step": step})
        except DigestMismatchError as error:
            self.events.emit("verified", step=step, ok=False, reason=str(error))
            writer.quarantine_base(step, str(error))
            raise
        proven: bool = found["outcome"] == "verified"
        self.events.emit("verified", step=step, ok=proven, reason=None if proven else found["outcome"])
        if proven:
            self.gang.note_verified(step, found)
            writer.mark_verified(step, {"state_digest": found["state_digest"]})
            self._threads.submit(self._retain, writer)
        return proven

    def _retain(self, writer: RunWriter) -> None:
        """Beside training: a pass waits for readers that have just come before it deletes."""
        try:
            writer.retain()
        except (FencedError, NotDurableError) as error:
            logger.warning("old bases and records were not deleted: %s; the next proof tries again", error)

    def finish(self) -> None:
        """Everything is in storage: book the end of the run."""
        steps = self.job.steps
        self.gang.wait_for_durable(steps)
        digests = self.gang.board.read(lambda facts: facts.digests.get(steps)) or self._stored_digests(steps)
        size = self.gang.board.read(lambda facts: facts.full_checkpoint_bytes)
        self.events.emit("finished", final_step=steps, full_checkpoint_bytes=size, **digests)
        write_entry(self.job, state="finished", step=steps)

    def _stored_digests(self, step: int) -> dict[str, Any]:
        """What storage says of a step that no rank of this attempt has done: the run had reached it before."""
        targets = open_targets(self.job.store.targets, deadline_seconds=self.job.store.deadline)
        with RunReader(targets, self.job.run) as reader:
            manifest = reader.manifest(reader.choose_base(step))
        if manifest.step != step:
            return {}
        names = ("weights_digest", "state_digest", "applied")
        return {name: getattr(manifest, name) for name in names}

    def cancel(self) -> None:
        """Somebody wants the run to end: the stages that wait raise RunCancelledError, and it ends in order."""
        error = RunCancelledError(f"run {self.job.run!r} was cancelled; the same command goes on with it where it was")
        self.gang.board.update(lambda facts: setattr(facts, "cancelled", error))

    @contextlib.contextmanager
    def stage(self, name: str, segment: int | None = None, attempt: int = 1) -> Iterator[None]:
        """The body is a stage: its time goes into the event log."""
        interruption.raise_again()
        begun = time.monotonic()
        try:
            yield
        finally:
            seconds = round(time.monotonic() - begun, 3)
            facts = {"name": name, "segment": segment, "seconds": seconds, "stage_attempt": attempt}
            if self.writer is None:
                self._early_stages.append(facts)
            else:
                self.events.emit("stage", **facts)

    def open(self) -> None:
        """Begin to bring up the gang, in a thread: it takes seconds in which the caller can do other things."""
        if self._opening is None:
            self._opening = self._threads.submit(self.gang.__enter__)

    def __enter__(self) -> Session:
        self.open()
        assert self._opening is not None
        self._stack.callback(self._threads.shutdown)
        self.narrate_to(self._stack.enter_context(RunLogging(self.job.run)).own)
        self._stack.callback(self.gang.close)
        try:
            self._opening.result()
        except BaseException:
            wait([self._opening])  # what comes up must be up before it can be taken down
            self._stack.close()
            _remove_traces(self.job.run)
            raise
        return self

    def narrate_to(self, log: Log) -> None:
        """Say what happens, in lines that people read, to a logger as well."""

        def say(event: Event) -> None:
            line = narrate(event)
            if line is not None:
                log.log(*line)

        spool = self.events.listen(say, name="log")
        self._stack.callback(lambda: spool.close(grace_seconds=2.0))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every process of the run, flush its log, give it free."""
        self.ended_by = error
        if error is not None:
            interruption.obey()
        try:
            if error is not None and self.writer is not None:
                self._end_early(self.writer, error)
        finally:
            # A second Ctrl-C must not leave processes behind: this goes on whatever happens.
            self._stack.close()
            if self.writer is not None:
                self.writer.release()
            else:
                _remove_traces(self.job.run)

    def _end_early(self, writer: RunWriter, error: BaseException) -> None:
        """An error, Ctrl-C, SIGTERM or a cancel: end in order, so that the run can be resumed at this very step."""
        if not isinstance(error, Exception) or isinstance(error, RunCancelledError):
            text = f"{_in_words(error)}: the ranks end their step, and what is final goes into storage"
            self.events.emit("warning", text=text)
        self.gang.stop(STOP_SECONDS)
        write_entry(self.job, state=_state_after(error), step=writer.durable_step)
        self.events.emit("failed", error=_in_words(error), durable_step=writer.durable_step)


def _remove_traces(run: str) -> None:
    """A start that was refused changes nothing: if its logs are all that is in the run's folder, it goes."""
    folder = run_folder(run)
    if folder.is_dir() and {entry.name for entry in folder.iterdir()} <= {"logs", log_path(run).name}:
        shutil.rmtree(folder, ignore_errors=True)


def _in_words(error: BaseException) -> str:
    if isinstance(error, OpenClawError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted by Ctrl-C"
    # What is no Exception was raised by a signal's handler.
    return f"{type(error).__name__}: {error}" if isinstance(error, Exception) else "told to end by a signal"


def _state_after(error: BaseException) -> str:
    if isinstance(error, RunCancelledError):
        return "cancelled"
    return "failed" if isinstance(error, Exception) else "interrupted"


def begin_session(
    job: TrainJob, faults: Sequence[str], accept_new_data: bool
) -> contextlib.AbstractContextManager[Session]:
    """A session on Dask workers, with the faults parsed and checked. Raises JobError."""
    session = _offered.pop(job.run, None)
    if session is None:
        session = dask_session(job, EventLog(job.run), parse_faults(faults, job), accept_new_data)
    return _registered(session)


def dask_session(
    job: TrainJob, events: EventLog, faults: Sequence[Fault], accept_new_data: bool, zygote: Zygote | None = None
) -> Session:
    """A session on Dask workers, not open yet. `zygote`: one that has been started for them already."""
    return Session(job, DaskPlacement(job, zygote), events, faults, accept_new_data)


@contextlib.contextmanager
def offer_session(session: Session) -> Iterator[None]:
    """Open `session` now; the flow that begins a session of this run in this process takes it over."""
    run = session.job.run
    _offered[run] = session
    session.open()
    try:
        yield
    finally:
        if _offered.pop(run, None) is not None:  # no flow came for it
            with contextlib.suppress(OpenClawError), session:
                pass


def open_session(
    job: TrainJob, placement: Placement, events: EventLog, faults: Sequence[Fault] = ()
) -> contextlib.AbstractContextManager[Session]:
    """The session of one attempt on agents of `placement`."""
    return _registered(Session(job, placement, events, faults, accept_new_data=False))


@contextlib.contextmanager
def _registered(session: Session) -> Iterator[Session]:
    """Whatever ends the body, no process of the run is left after it."""
    run = session.job.run
    if run in _sessions:
        raise RunError(f"run {run!r} is being trained by this process already")
    _sessions[run] = session
    try:
        with session:
            yield session
    finally:
        del _sessions[run]


def session_of(run: str) -> Session:
    """The open session of a run in this process."""
    return _sessions[run]
