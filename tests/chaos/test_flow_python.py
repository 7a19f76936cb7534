"""`train()` and the fixture `openclaw_run` in programs of the user's own, and two runs on one machine."""

from __future__ import annotations

import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import Started, events_of, openclaw
from drills import JOB, Drills

pytestmark = [pytest.mark.chaos, pytest.mark.flow]

SCRIPT = """
import json, sys, threading
from openclaw_tasks import Tracker, TrainJob, train

class Raising(Tracker):
    def on_run_begin(self, run): raise SystemExit("a tracker that wants to end everything")
    def on_batch_end(self, metrics): raise ValueError("a tracker that is wrong")

class Blocking(Tracker):
    def on_batch_end(self, metrics): threading.Event().wait()

class Noting(Tracker):
    def __init__(self): self.hooks, self.steps = [], []
    def on_run_begin(self, run): self.hooks.append("begin")
    def on_batch_end(self, metrics): self.steps.append(metrics["step"])
    def on_segment_end(self, segment): self.hooks.append(f"segment {segment['step']}")
    def on_recovery(self, recovery): self.hooks.append("recovery")
    def on_run_end(self, result): self.hooks.append(f"end {result['kind']}")

if __name__ == "__main__":
    noting = Noting()
    job = TrainJob.load(sys.argv[1], {"run": "tracked"})
    report = train(job, faults=["kill-rank:1@25"], trackers=[Raising(), Blocking(), noting])
    json.dump({"report": report.document(), "hooks": noting.hooks, "steps": noting.steps}, sys.stdout)
"""

# The README's recipe and test, with a second test on the same server.
USERS_RECIPE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

from openclaw_tasks import LossSum, Recipe


class Digits(Recipe):
    def __init__(self, width: int = 32):
        self.width = width

    def model(self):
        return nn.Sequential(nn.Linear(64, self.width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(self.width, 10))

    def dataset(self):
        points = torch.randn(1000, 64, generator=torch.Generator().manual_seed(0))
        return TensorDataset(points, points[:, :10].argmax(1))

    def loss(self, model, batch):
        x, y = batch
        return LossSum(nn.functional.cross_entropy(model(x), y, reduction="sum"), len(y))
"""
USERS_TEST = """
import pytest
from openclaw_tasks import TrainJob
from openclaw_tasks.errors import RecipeError


def test_my_recipe_survives_a_killed_rank(openclaw_run):
    job = TrainJob(run="t", recipe="my_recipe:Digits", steps=20, segment_steps=10, global_batch=16)
    report = openclaw_run(job, faults=["kill-rank:1@10"])
    assert report.recoveries[0].steps_lost == 0
    assert report["final_step"] == 20


def test_what_cannot_be_built_is_raised_here(openclaw_run):
    job = TrainJob(run="u", recipe="my_recipe:Digits", recipe_args={"width": -1}, steps=20, global_batch=16)
    with pytest.raises(RecipeError, match="model"):
        openclaw_run(job)
"""


def test_trackers_that_raise_or_block_do_not_hurt_a_run(drills: Drills, calm: dict[str, Any], tmp_path: Path) -> None:
    """radixark/miles#2571: and the one that works gets everything, in order."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with Started(script, JOB, home=drills.home, program=(sys.executable,)) as program:
        ended = program.end()
        program.wait_gone(10)
    assert ended.status == 0, ended.err
    told = ended.document
    assert told["report"]["state_digest"] == calm["state_digest"]
    assert told["steps"] == list(range(1, 41))
    assert told["hooks"] == [
        "begin",
        *(f"segment {step}" for step in (0, 10, 20)),
        "recovery",
        *(f"segment {step}" for step in (30, 40)),
        "end finished",
    ]
    tracking = {event["tracker"]: event for event in drills.events("tracked", "tracking")}
    assert tracking["Noting"]["unsent"] == 0
    assert tracking["Raising"]["errors"] >= 41
    assert tracking["Blocking"]["delivered"] == 2  # the start, and the boundary of step 0
    assert tracking["Blocking"]["unsent"] > 40
    assert ended.err.count("Raising raised SystemExit") == 1
    assert ended.err.count("recovered from") == 1


def test_the_fixture_trains_a_users_recipe_in_his_own_tests(tmp_path: Path) -> None:
    """The README's example, in a project that knows nothing of ours; the user's own home is left alone."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "my_recipe.py").write_text(USERS_RECIPE)
    (project / "test_mine.py").write_text(USERS_TEST)
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error")
    begun = time.monotonic()
    with Started(*words, home=tmp_path / "home", folder=project, program=(sys.executable,)) as tests:
        ended = tests.end(seconds=110)
        tests.wait_gone(10)
    assert ended.status == 0, ended.out + ended.err
    assert "2 passed" in ended.out
    assert not (tmp_path / "home").exists()
    print(f"a user's two tests took {time.monotonic() - begun:.1f} s")


def test_two_runs_share_one_server_and_the_last_to_leave_ends_it(prepared_home: Path, calm: dict[str, Any]) -> None:
    """pytorch/pytorch#91940: several on one host at once; each is as undisturbed as alone."""
    brake = prepared_home.with_name("brake")
    brake.write_text("0.5")

    def start(run: str, environment: dict[str, str]) -> Started:
        return Started("train", JOB, "--set", f"run={run}", home=prepared_home, environment=environment)

    with start("slow", {"DRILL_BRAKE": str(brake)}) as slow:
        server = slow.wait_for(lambda: servers(prepared_home), "server")
        with start("quick", {}) as quick:
            assert quick.end().status == 0
            assert slow.process.poll() is None
            assert servers(prepared_home) == server
            brake.unlink()
            assert slow.end().status == 0
            slow.wait_gone(10)
            quick.wait_gone(10)
    assert servers(prepared_home) == []
    for run in ("slow", "quick"):
        (finished,) = events_of(prepared_home, run, "finished")
        assert finished["state_digest"] == calm["state_digest"]
    assert [run["state"] for run in openclaw("runs", "--json", home=prepared_home).document] == ["finished"] * 2


def servers(home: Path) -> list[int]:
    """Pids of the Prefect servers of a home."""
    found = []
    for process in psutil.process_iter(["cmdline", "pid"]):
        if any(word.endswith("server_process.py") for word in process.info["cmdline"] or []):
            try:
                if process.cwd() == str(home.resolve() / "prefect"):
                    found.append(process.pid)
            except psutil.Error:
                continue
    return found


def test_a_script_without_a_main_guard_is_told_so(drills: Drills, tmp_path: Path) -> None:
    """Dask's workers import the script again; that must not start the run again in each."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            from openclaw_tasks import TrainJob, train
            train(TrainJob.load(sys.argv[1], {"run": "unguarded"}))
            """
        )
    )
    with Started(script, JOB, home=drills.home, program=(sys.executable,)) as program:
        ended = program.end()
        program.wait_gone(10)
    assert "__main__" in ended.err
    assert ended.status != 0
    assert not drills.folder("unguarded").exists()
