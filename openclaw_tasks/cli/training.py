"""`openclaw train`: run a job and show how it goes."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from openclaw_tasks import api
from openclaw_tasks.cli.progress import watch_run
from openclaw_tasks.config.faults import parse_faults
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.config.output_file import check_output_file
from openclaw_tasks.errors import RunError
from openclaw_tasks.observe.events import EventLog, read_events
from openclaw_tasks.observe.report import Report
from openclaw_tasks.observe.wording import format_bytes, format_count


def train_job(
    name: str,
    set_: Sequence[str],
    report_file: Path | None,
    faults: Sequence[str],
    accept_new_data: bool,
    *,
    as_json: bool,
    debug: bool,
) -> None:
    """Train, show progress on standard error, and the result on standard output."""
    job = TrainJob.load(name, set_)
    checked = parse_faults(faults, job)
    if report_file is not None:
        check_output_file("--report", report_file)
    begun = time.monotonic()
    was_finished = api.finished_report(job) is not None
    report = api.train(job, faults=checked, accept_new_data=accept_new_data, watch=watcher(job, debug=debug))
    write_report(report, report_file)
    if as_json:
        print(report.to_json())
    elif was_finished:
        print(f"run {job.run!r} is finished: step {report.final_step} of {job.steps}; nothing was done")
        if checked:
            print(f"no fault struck: {', '.join(fault.text() for fault in checked)}")
        print(f"weights digest  {report.weights_digest}")
    else:
        print_result(job, report, time.monotonic() - begun, first=_first_step(job.run))


def write_report(report: Report, file: Path | None) -> None:
    """Write it as JSON. Raises RunError if the place has become bad since it was checked."""
    if file is None:
        return
    try:
        file.write_text(report.to_json() + "\n", encoding="utf-8")
    except OSError as error:
        raise RunError(
            f"--report {file}: {error.strerror}; the run is finished: the same command with another place writes it"
        ) from error


def watcher(job: TrainJob, *, debug: bool) -> api.Watch:
    """What `api.train` calls to follow the run."""

    if not debug:
        # Prefect's own lines stay off the terminal; the UI still gets them. Read by Prefect when it is imported.
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")

    @contextlib.contextmanager
    def watch(events: EventLog) -> Iterator[None]:
        with watch_run(job, events):
            yield

    return watch


def _first_step(run: str) -> int:
    """The first step of the run's newest start."""
    resumed = [event["resumed_step"] for event in read_events(run) if event["kind"] == "attempt-started"]
    return int(resumed[-1]) + 1 if resumed else 1


def program() -> str:
    """How this command can be typed again."""
    ours = Path(sys.argv[0])
    found = shutil.which(ours.name)
    is_on_path = found is not None and Path(found).resolve() == ours.resolve()
    return ours.name if is_on_path else os.path.relpath(ours)


def print_result(job: TrainJob, report: Report, seconds: float, *, first: int) -> None:
    """The end of a run, for people."""
    if report.loss.first is not None and report.loss.last is not None:
        print(f"loss            {report.loss.first:.4f} at first, {report.loss.last:.4f} at last")
    for recovery in report.recoveries:
        recovered = "–" if recovery.recovered_seconds is None else f"{recovery.recovered_seconds:.3f} s"
        print(
            f"recovered       step {recovery.step}: {recovery.cause}, in {recovered}, {recovery.steps_lost} steps lost"
        )
    if report.log_bytes is not None and report.base_bytes is not None:
        print(f"stored          log {format_bytes(report.log_bytes)}, bases {format_bytes(report.base_bytes)}")
    if report.degraded_groups:
        groups = format_count(report.degraded_groups, "group")
        print(f"degraded        {groups} of steps on fewer targets than the job names: fewer more of these may be lost")
    print(f"steps           {first} to {report.final_step} of {job.steps} in {seconds:.1f} s")
    print(f"weights digest  {report.weights_digest}")
    print(f"weights         {program()} export {job.run} --out {job.run}.safetensors")
    if report.verified_steps:
        bases = format_count(len(report.verified_steps), "base")
        print(f"proven          {bases}, the last at step {report.verified_steps[-1]}")
    sys.stdout.flush()
