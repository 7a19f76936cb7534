"""The Python face: `train` runs the flow and gives the report; `export` and `verify` read what a run has stored."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openclaw_tasks.config.faults import Fault, parse_faults
from openclaw_tasks.config.home import home, read_entry
from openclaw_tasks.config.job import TrainJob, compare_fixed
from openclaw_tasks.config.output_file import check_output_file
from openclaw_tasks.config.recipe_file import check_recipe_file
from openclaw_tasks.errors import DataLossError, JobError, RunCancelledError, UsageError
from openclaw_tasks.observe.events import EventLog, read_events
from openclaw_tasks.observe.report import Report, fold_report
from openclaw_tasks.observe.tracker import Tracker, TrackerRunner

if TYPE_CHECKING:
    from openclaw_tasks.checkpoint.reader import RunReader

Fact = dict[str, Any]
Watch = Callable[[EventLog], contextlib.AbstractContextManager[None]]


def train(
    job: TrainJob,
    *,
    faults: Sequence[Fault | str] = (),
    trackers: Sequence[Tracker] = (),
    accept_new_data: bool = False,
    watch: Watch | None = None,
) -> Report:
    """Train `job` through the Prefect flow, going on where its run was; returns the report of its whole history.

    faults: struck on purpose, once each. trackers: hooks of the user's own. accept_new_data: go on although the data
    differ from the last start's. watch: a context that follows the event log while the flow runs.

    Raises UsageError (nothing was changed), RunError (the run failed and can be resumed, unless it says otherwise).
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError(
            "train() is called while a child process imports your script again; put the call under "
            '`if __name__ == "__main__":`'
        )
    checked = parse_faults([fault.text() if isinstance(fault, Fault) else fault for fault in faults], job)
    refuse_shadowed_flows()
    done = finished_report(job)
    if done is not None:
        return done

    if read_entry(job.run) is not None:
        from openclaw_tasks.gang.claim import check_known_run

        check_known_run(job)
    check_recipe_file(job)
    events = EventLog(job.run)
    runner = TrackerRunner(events, trackers)
    with contextlib.ExitStack() as stack:
        stack.callback(events.close)
        stack.callback(runner.close)
        # What is slow to start starts side by side, and what takes longest first: torch, the server, the agents, and
        # Prefect in this process.
        from openclaw_tasks.gang.zygote import Zygote

        zygote = None
        if job.cluster.address is None:
            zygote = Zygote()
            stack.callback(zygote.close)  # it ends with the gang, or here if there never is one

        from openclaw_tasks.steps.server import join_server

        server = stack.enter_context(join_server(home(), wait_ready=False))

        from openclaw_tasks.gang.session import dask_session, offer_session

        session = dask_session(job, events, checked, accept_new_data, zygote)
        stack.enter_context(offer_session(session))
        stack.enter_context(watch(events) if watch else contextlib.nullcontext())
        stack.enter_context(_prefect_settings(server.environment()))
        from prefect.exceptions import CancelledRun

        from flows.train import train as flow
        from openclaw_tasks.steps.drain import send_what_waits

        server.wait_ready()
        stack.callback(send_what_waits)
        try:
            document = flow(job, [fault.text() for fault in checked], accept_new_data)
        except CancelledRun as error:
            raise session.ended_by or RunCancelledError(f"run {job.run!r} was cancelled") from error
    return Report.from_json(json.dumps(document))


def finished_report(job: TrainJob) -> Report | None:
    """The report of a run that has nothing left to do; None if it has, or if that cannot be told.

    Raises JobError if the job differs from the run in something that is fixed for its life.
    """
    entry = read_entry(job.run)
    if entry is None:
        return None
    compare_fixed(TrainJob.parse(entry.job).fixed(), job.fixed(), run=job.run)
    if entry.state != "finished" or entry.step < job.steps:
        return None
    with open_reader(job) as reader:
        if reader.last_step < job.steps:
            return None
    return fold_report(read_events(job.run), run=job.run, recipe=job.recipe, planned_steps=job.steps)


@dataclass(frozen=True, slots=True)
class Proof:
    """What `export` and `verify` say about a state. `outcome` is "verified", "exported" or "other-arithmetic"."""

    run: str
    step: int
    weights_digest: str
    state_digest: str
    ok: bool
    outcome: str
    warnings: tuple[str, ...] = ()

    def document(self) -> Fact:
        """As `--json` prints it."""
        fields = asdict(self)
        return {name: fields[name] for name in ("run", "step", "weights_digest", "state_digest", "ok")}


def export(job: TrainJob, out: Path, *, step: int | None = None) -> Proof:
    """Write the weights after `step` (default: the last durable one) as a safetensors file.

    Raises DataLossError, with nothing written, when storage cannot give that step any more.
    """
    check_output_file("--out", out)  # before anything is imported that takes its time

    from openclaw_tasks.checkpoint.replay import rebuild_state
    from openclaw_tasks.exact.export import export_weights
    from openclaw_tasks.training.build import build_state

    with open_reader(job) as reader:
        _check_step(job, reader, step)
        state = build_state(job)[1]
        rebuild_state(reader, state, step)
        export_weights(state, out)
        weights, whole = state.digests()
        return Proof(job.run, state.step, weights, whole, True, "exported", tuple(reader.warnings))


def verify(job: TrainJob, *, step: int | None = None) -> Proof:
    """Prove what storage holds: decode from the fewest stripes and replay the log to the digest that ranks reported.

    Raises DataLossError, DamagedError, DigestMismatchError.
    """
    from openclaw_tasks.checkpoint.provenance import changes
    from openclaw_tasks.checkpoint.replay import verify_run
    from openclaw_tasks.training.build import build_state

    with open_reader(job) as reader:
        _check_step(job, reader, step)
        found = verify_run(reader, lambda: build_state(job)[1], step)
        return Proof(
            job.run,
            found.step,
            found.weights_digest,
            found.state_digest,
            found.outcome == "verified",
            found.outcome,
            (*reader.warnings, *changes(reader)),
        )


@contextlib.contextmanager
def open_reader(job: TrainJob) -> Iterator[RunReader]:
    """A pinned reader of `job`'s run. Raises JobError for a run that never was, DataLossError for one that is gone."""
    from openclaw_tasks.checkpoint.history import DEEP_BYTES
    from openclaw_tasks.checkpoint.reader import RunReader
    from openclaw_tasks.gang.claim import refuse_too_few
    from openclaw_tasks.storage.targets import open_targets

    targets = open_targets(job.store.targets, deadline_seconds=job.store.deadline)
    known = read_entry(job.run) is not None
    if not targets.present():
        raise _absent(job, known)
    refuse_too_few(job, targets)
    # Deep: people are told of every damaged target, not only of those whose stripes happen to be needed.
    with RunReader(targets, job.run, pin=True, deep_bytes=DEEP_BYTES) as reader:
        if not reader.exists:
            raise _absent(job, known)
        yield reader


def _absent(job: TrainJob, known: bool) -> Exception:
    places = ", ".join(job.store.targets)
    if known:
        return DataLossError(
            f"run {job.run!r} was trained from here, and none of its targets holds it any more ({places}); bring them "
            "back, or start under another name"
        )
    return JobError(f"run {job.run!r} has not been trained: no target holds it ({places}); `openclaw train` starts it")


def _check_step(job: TrainJob, reader: RunReader, step: int | None) -> None:
    first = min((base.step for base in reader.lineage.bases), default=0)
    if step is not None and not first <= step <= reader.last_step:
        gone = f" (what lies before step {first} is not kept)" if first else ""
        steps = f"has steps {first} to {reader.last_step}{gone}"
        raise JobError(f"--step {step}: run {job.run!r} {steps}; choose one of these")


def refuse_shadowed_flows() -> None:
    """Raise UsageError if the module `flows` that Python finds is not ours."""
    ours = Path(__file__).parent.parent / "flows"
    spec = importlib.util.find_spec("flows")
    found = Path(next(iter(spec.submodule_search_locations or [spec.origin or ""]))) if spec is not None else None
    if found is None or found.resolve() != ours.resolve():
        raise UsageError(
            f"the module `flows` found is {found}, not OpenClaw's own {ours}; rename that folder, or run from another"
        )


@contextlib.contextmanager
def _prefect_settings(variables: dict[str, str]) -> Iterator[None]:
    """Point Prefect at the server: by the environment, which it reads when imported, and by settings if it was."""
    before = {name: os.environ.get(name) for name in variables}
    was_imported = "prefect" in sys.modules
    os.environ.update(variables)
    try:
        from prefect.settings import PREFECT_API_URL, temporary_settings

        with temporary_settings({PREFECT_API_URL: variables["PREFECT_API_URL"]}) if was_imported else _nothing():
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _nothing() -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()
