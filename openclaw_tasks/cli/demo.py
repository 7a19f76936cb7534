"""`openclaw demo`: the whole promise in one command, and the proof of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from openclaw_tasks import api
from openclaw_tasks.cli.training import program, watcher, write_report
from openclaw_tasks.config.home import forget_run, home, run_folder
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.config.output_file import check_output_file
from openclaw_tasks.errors import DigestMismatchError
from openclaw_tasks.gang.placing import LocalPlacement
from openclaw_tasks.gang.plain_run import train_plainly
from openclaw_tasks.observe.events import EventLog
from openclaw_tasks.observe.report import Report
from openclaw_tasks.observe.wording import format_bytes, format_seconds
from openclaw_tasks.steps.server import join_server

REFERENCE_RANKS = 4


def run_demo(set_: Sequence[str], report_file: Path | None, *, as_json: bool, debug: bool) -> None:
    """Train with a rank killed and a target deleted, then undisturbed on other ranks, and compare the bits.

    Raises DigestMismatchError if they differ.
    """
    if report_file is not None:
        check_output_file("--report", report_file)
    name = f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    job = TrainJob.load("demo", [f"run={name}", *set_])
    half = job.steps // 2
    faults = (f"kill-rank:1@{half}", f"delete-target:2@{half + job.steps // 10}")
    say = (lambda text="": None) if as_json else _say
    say(f"openclaw demo: a byte-level transformer learns from real text; the run is {job.run}")
    say(
        f"  in the flow: {job.cluster.workers} ranks, {len(job.store.targets)} targets, "
        f"of which any {job.store.redundancy} may die"
    )
    say(f"  on purpose:  {' and '.join(faults)}")
    begun = time.monotonic()
    with join_server(home(), wait_ready=False):
        disturbed = api.train(job, faults=faults, watch=watcher(job, debug=debug))
        trained = time.monotonic()
        say()
        say(f"the same job on {REFERENCE_RANKS} ranks, undisturbed, without Prefect:")
        reference = _reference(job, debug=debug)
        write_report(disturbed, report_file)
        if as_json:
            print(disturbed.to_json())
        else:
            _tell_proof(job, disturbed, reference)
            _tell_places(job, trained - begun, time.monotonic() - begun)
    if disturbed.state_digest is None or disturbed.state_digest != reference.state_digest:
        raise DigestMismatchError(
            f"the disturbed run ended with state {disturbed.state_digest}, "
            f"the undisturbed with {reference.state_digest}"
        )
    # It has served; its log is several times the demo's own.
    forget_run(reference.run)


def _reference(job: TrainJob, *, debug: bool) -> Report:
    run = f"{job.run}-reference"
    targets = [(run_folder(run) / f"t{index}").as_uri() for index in range(len(job.store.targets))]
    document = job.document()
    reference = TrainJob.parse(
        {
            **document,
            "run": run,
            "cluster": {**document["cluster"], "workers": REFERENCE_RANKS},
            "store": {**document["store"], "targets": targets},
        }
    )
    events = EventLog(run)
    with watcher(reference, debug=debug)(events):
        return train_plainly(reference, LocalPlacement(REFERENCE_RANKS), prove=False, events=events)


def _tell_proof(job: TrainJob, disturbed: Report, reference: Report) -> None:
    same = disturbed.weights_digest == reference.weights_digest
    _say()
    _say(f"weights, disturbed    {disturbed.weights_digest}")
    _say(f"weights, undisturbed  {reference.weights_digest}   {'the same bits' if same else 'DIFFERENT'}")
    for recovery in disturbed.recoveries:
        _say(
            f"recovery at step {recovery.step}: {recovery.cause}; computing again after "
            f"{format_seconds(recovery.recovered_seconds)}, overhead {format_seconds(recovery.overhead_seconds)}"
        )
    lost = sum(recovery.steps_lost or 0 for recovery in disturbed.recoveries)
    _say(f"steps lost            {lost}")
    if disturbed.log_bytes and disturbed.full_checkpoint_bytes:
        full = disturbed.full_checkpoint_bytes * job.steps
        stored = disturbed.log_bytes + (disturbed.base_bytes or 0)
        _say(
            f"checkpoint bytes      {format_bytes(stored)} for a checkpoint of every step; "
            f"full saves of every step are {format_bytes(full)} ({full / stored:.1f} times as much)"
        )


def _tell_places(job: TrainJob, trained_seconds: float, seconds: float) -> None:
    _say()
    _say(f"files      {run_folder(job.run)}")
    _say(f"weights    {program()} export {job.run} --out demo.safetensors")
    _say(f"look       {program()} ui")
    _say(f"time       {trained_seconds:.1f} s for the run, {seconds:.1f} s in all")


def _say(text: str = "") -> None:
    print(text, flush=True)
