"""Drills: a job of some seconds through the command, the Prefect server and Dask, and what is known of it then."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from commands import Ended, Started, events_of, openclaw

from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.exact.seeding import permutation

S = TypeVar("S", bound=Started)

FOLDER: Final = Path(__file__).parent / "drill"
JOB: Final = FOLDER / "drill.yaml"
SAMPLES: Final = 640
STEPS: Final = 40

REPORT_FIELDS: Final = [
    "run",
    "recipe",
    "planned_steps",
    "final_step",
    "applied",
    "weights_digest",
    "state_digest",
    "loss",
    "world_sizes",
    "recoveries",
    "durable_step",
    "log_bytes",
    "base_bytes",
    "full_checkpoint_bytes",
    "degraded_groups",
    "verified_steps",
    "stage_seconds",
]
RECOVERY_FIELDS: Final = [
    "step",
    "cause",
    "detected_seconds",
    "recovered_seconds",
    "overhead_seconds",
    "steps_lost",
]


@dataclass(frozen=True, slots=True)
class Api:
    """The Prefect server's, as its UI asks it."""

    url: str

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        request = urllib.request.Request(
            f"{self.url}{path}", data=json.dumps(body).encode(), headers={"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def flow_runs(self, run: str) -> list[dict[str, Any]]:
        """The flow runs of a run, oldest first."""
        wanted = {"flow_runs": {"name": {"any_": [run]}}, "sort": "START_TIME_ASC"}
        found: list[dict[str, Any]] = self.post("/flow_runs/filter", wanted)
        return found

    def artifact_ids(self, flow_run_id: str) -> dict[str, str]:
        """Of the newest of each key."""
        found: dict[str, str] = {}
        for artifact in self._artifacts(flow_run_id):
            found.setdefault(artifact["key"], artifact["id"])
        return found

    def task_runs(self, flow_run_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.post("/task_runs/filter", {"flow_runs": {"id": {"any_": [flow_run_id]}}})
        return found

    def artifacts(self, flow_run_id: str) -> dict[str, str]:
        """The newest of each key that the flow run has published."""
        found: dict[str, str] = {}
        for artifact in self._artifacts(flow_run_id):
            found.setdefault(artifact["key"], artifact["data"])
        return found

    def _artifacts(self, flow_run_id: str) -> list[dict[str, Any]]:
        wanted = {"artifacts": {"flow_run_id": {"any_": [flow_run_id]}}, "sort": "UPDATED_DESC", "limit": 200}
        found: list[dict[str, Any]] = self.post("/artifacts/filter", wanted)
        return found

    def log_lines(self, flow_run_id: str) -> list[str]:
        wanted = {"logs": {"flow_run_id": {"any_": [flow_run_id]}}, "sort": "TIMESTAMP_ASC", "limit": 200}
        return [line["message"] for line in self.post("/logs/filter", wanted)]


@dataclass(frozen=True, slots=True)
class Drills:
    """Where they run: one home folder with one server for all, and the undisturbed run to compare with."""

    home: Path
    api: Api

    def words(self, run: str, *words: str | os.PathLike[str]) -> list[str | os.PathLike[str]]:
        return ["train", JOB, "--set", f"run={run}", *words]

    def train(self, run: str, *words: str | os.PathLike[str], **how: Any) -> Ended:
        """`openclaw train` to its end."""
        return openclaw(*self.words(run, *words), home=self.home, **how)

    def train_job(self, job: Path, *words: str | os.PathLike[str], **how: Any) -> Ended:
        """`openclaw train` of another job file."""
        return openclaw("train", job, *words, home=self.home, **how)

    def start(
        self,
        run: str,
        *words: str | os.PathLike[str],
        pause_seconds: float = 0.0,
        environment: Mapping[str, str] | None = None,
        kind: type[S] = Started,  # type: ignore[assignment]
    ) -> S:
        """`openclaw train`, with a pause in each forward until `release`, so that it can be met in the middle."""
        self._brake(run).write_text(str(pause_seconds))
        return kind(
            *self.words(run, *words),
            home=self.home,
            environment={"DRILL_BRAKE": str(self._brake(run)), **(environment or {})},
        )

    def release(self, run: str) -> None:
        """No more pauses."""
        self._brake(run).unlink()

    def _brake(self, run: str) -> Path:
        return self.home.with_name(f"{run}.brake")

    def events(self, run: str, *kinds: str) -> list[dict[str, Any]]:
        return events_of(self.home, run, *kinds)

    def folder(self, run: str) -> Path:
        return self.home / "runs" / run

    def targets(self, run: str) -> list[Path]:
        return [self.folder(run) / f"t{index}" for index in range(5)]

    def state(self, run: str) -> tuple[str, int]:
        """As the index holds them."""
        entry = json.loads((self.home / "index" / f"{run}.json").read_text())
        return entry["state"], entry["step"]

    def standing(self, run: str) -> str:
        """As `openclaw runs` tells it."""
        listed = openclaw("runs", "--json", home=self.home).document
        return next(str(one["state"]) for one in listed if one["run"] == run)

    def wait_for_steps(self, command: Started, run: str, attempt: int, count: int) -> None:
        """Wait until the run's start number `attempt` has done `count` steps."""
        command.wait_for(lambda: len(self.resumed_steps(run)) >= attempt, f"start {attempt} of {run}")
        command.wait_for_step(run, self.resumed_steps(run)[attempt - 1] + count, attempt)

    def resumed_steps(self, run: str) -> list[int]:
        return [event["resumed_step"] for event in self.events(run, "attempt-started")]


@dataclass(frozen=True, slots=True)
class Struck:
    """How a run ended that was struck on its way."""

    ended: Ended
    report_file: Path


def sample_of(step: int, number: int = 0) -> int:
    """The dataset's index of one sample of `step`, which no other step of the first epoch has."""
    job = TrainJob.load(JOB)
    assert step * job.global_batch <= SAMPLES
    return int(permutation(job.seed, 0, SAMPLES)[(step - 1) * job.global_batch + number])


def last_step(events: list[dict[str, Any]], attempt: int) -> int:
    """The last step that an attempt reported."""
    return max(event["step"] for event in events if event["kind"] == "step" and event["attempt"] == attempt)
