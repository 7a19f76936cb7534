"""The supervisor's process dies: agents flush what is final, every process ends, and no step is lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import plain_run_process
import psutil
import pytest
from gang_runs import ROUNDS, WAIT_SECONDS, GangRuns, assert_exact, wait_until_gone

from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.observe.events import Event, read_events

pytestmark = pytest.mark.chaos

GONE_SECONDS = 10.0


@contextmanager
def training(job: TrainJob) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own that trains `job`; dead after the body, whatever happens."""
    command = [sys.executable, "-P", plain_run_process.__file__]
    # Files, not pipes: nobody reads them while it runs.
    with Path(f"{job.run}.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(job.document()).encode())
        process.stdin.close()
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for_event(job: TrainJob, process: subprocess.Popen[bytes], kind: str, at_least: int) -> Event:
    """The first event of this kind with such a step."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        for event in read_events(job.run):
            if event["kind"] == kind and event["step"] >= at_least:
                return event
        assert process.poll() is None, Path(f"{job.run}.log").read_text()
        time.sleep(0.01)
    raise AssertionError(f"no {kind} of step {at_least} within {WAIT_SECONDS:g} s")


def kill(process: subprocess.Popen[bytes]) -> list[int]:
    """End it without notice; its agents, zygote, launchers and ranks."""
    pids = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    return pids


@pytest.fixture(autouse=True)
def logs_in_the_tests_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("attempt", range(1 * ROUNDS))
def test_a_killed_supervisor_costs_no_step(gang: GangRuns, tmp_path: Path, attempt: int) -> None:
    """clemsgrs/slide2vec#131, PrefectHQ/prefect#16746: even SIGKILL leaves nothing behind but a run to go on with."""
    trace = tmp_path / "trace"
    job = gang.job("Traced", workers=2, recipe_args=gang.crawl(trace=str(trace)), steps=60, segment_steps=20)
    with training(job) as process:
        wait_for_event(job, process, "step", gang.rng.randrange(3, 9))
        time.sleep(gang.rng.uniform(0.0, 0.2))  # any moment of a step
        begun = time.monotonic()
        pids = kill(process)
        assert len(pids) == 7  # two agents, the zygote, two launchers, two ranks
        wait_until_gone(pids, GONE_SECONDS)
    print(f"everything was gone after {time.monotonic() - begun:.2f} s")
    reached = max(map(int, trace.read_text().split()))
    gang.hurry()
    outcome = gang.run(job)
    assert_exact(outcome)
    assert outcome.resumed_step() == reached  # the step that they were in has been finished by all


def test_a_supervisor_killed_before_the_first_base_costs_the_first_steps_only(gang: GangRuns) -> None:
    """Nothing is durable yet: the next start finds a run without a base, and begins at its first step."""
    job = gang.job("Everything", workers=1, recipe_args=gang.crawl())
    with training(job) as process:
        deadline = time.monotonic() + WAIT_SECONDS
        while not any(event["kind"] == "attempt-started" for event in read_events(job.run)):
            assert time.monotonic() < deadline
            time.sleep(0.002)
        wait_until_gone(kill(process), GONE_SECONDS)
    gang.hurry()
    assert_exact(gang.run(job))
