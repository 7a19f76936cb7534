"""What dies around the flow: Dask workers, whole gangs, again and again; and whose each retry is."""

from __future__ import annotations

import logging
import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import Started
from distributed import Client, LocalCluster
from drills import Drills, sample_of

from openclaw_tasks.gang.worker_plugin import AgentPlugin

pytestmark = [pytest.mark.chaos, pytest.mark.flow]


class Watched(Started):
    """A command whose secret is looked for wherever a process shows something of itself."""

    secret = ""

    def seen_secrets(self) -> list[str]:
        """Where the run's token shows now: command lines and environments of all its processes."""
        found = []
        for pid in self.pids():
            for name in ("cmdline", "environ"):
                try:
                    data = Path(f"/proc/{pid}/{name}").read_bytes()
                except OSError:
                    continue
                if self.secret.encode() in data:
                    found.append(f"{name} of {pid}")
        return found


@pytest.fixture(scope="module")
def worn(drills: Drills) -> dict[str, Any]:
    """A run whose Dask worker is killed; at DEBUG, with its token noted, and what showed it while it ran."""
    told: dict[str, Any] = {}
    token_file = "token-*"
    loud = {"PREFECT_LOGGING_LEVEL": "DEBUG", "PREFECT_LOGGING_TO_API_ENABLED": "true"}
    report = drills.folder("worn").parent.with_name("worn-report.json")
    nobody = drills.start("nobody", "--set", "cluster.address=tcp://127.0.0.1:9")
    with (
        nobody,
        drills.start(
            "worn", "--debug", "--report", report, pause_seconds=0.5, environment=loud, kind=Watched
        ) as command,
    ):
        command.wait_for_step("worn", 2)
        (file,) = drills.folder("worn").glob(token_file)
        told["mode"] = file.stat().st_mode & 0o777
        command.secret = file.read_text()
        told["shown"] = command.seen_secrets()
        worker = command.pids_of("multiprocessing.spawn")[0]
        os.kill(worker, signal.SIGKILL)
        command.wait_for(lambda: len(generations(drills, "worn")) == 3, "rank of a new worker")
        told["shown"] += command.seen_secrets()
        drills.release("worn")
        told["ended"] = command.end()
        told["secret"] = command.secret
        command.wait_gone(10)
        told["nobody"] = nobody.end()
    told["report"] = report.read_text()
    return told


def generations(drills: Drills, run: str) -> list[int]:
    """How many ranks each generation had."""
    return [event["ranks"] for event in drills.events(run, "generation")]


def test_a_killed_dask_worker_is_replaced_and_its_agent_joins_again(
    drills: Drills, worn: dict[str, Any], calm: dict[str, Any]
) -> None:
    """PrefectHQ/prefect#15442: its death costs a rank for a while, and no stage is run again."""
    ended = worn["ended"]
    assert ended.status == 0, ended.err
    assert generations(drills, "worn") == [2, 1, 2]
    (flow_run,) = drills.api.flow_runs("worn")
    task_runs = drills.api.task_runs(flow_run["id"])
    assert {task_run["state"]["type"] for task_run in task_runs} == {"COMPLETED"}
    assert {task_run["run_count"] for task_run in task_runs} == {1}
    assert calm["state_digest"] in worn["report"]


def test_the_runs_token_shows_nowhere(drills: Drills, worn: dict[str, Any]) -> None:
    """PrefectHQ/prefect#11098: at DEBUG, in command lines, environments, logs, artifacts, reports and Dask's graph."""
    secret = worn["secret"]
    assert len(secret) == 64
    assert worn["mode"] == 0o600
    assert worn["shown"] == []
    assert list(drills.folder("worn").glob("token-*")) == []
    (flow_run,) = drills.api.flow_runs("worn")
    texts = [worn["ended"].out, worn["ended"].err, worn["report"]]
    texts += drills.api.log_lines(flow_run["id"])
    texts += drills.api.artifacts(flow_run["id"]).values()
    texts += [str(flow_run), str(drills.api.task_runs(flow_run["id"]))]
    assert any("DEBUG" in text for text in texts[:2])
    assert not [text for text in texts if secret in text]
    for file in drills.home.rglob("*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes(), file
    config = {"name": "worn", "token_file": "/a/token", "log_folder": "/logs", "supervisor": ["127.0.0.1", 1]}
    assert secret.encode() not in pickle.dumps(AgentPlugin(config, own_workers=True))


def test_a_lost_gang_is_the_stages_retry_and_no_other_stage_is_run_again(drills: Drills, calm: dict[str, Any]) -> None:
    """PrefectHQ/prefect#15442: completed work is never redone."""
    ended = drills.train("lost", "--fault", "kill-rank:0@15", "--fault", "kill-rank:1@15", "--json")
    assert ended.status == 0, ended.err
    assert ended.document["state_digest"] == calm["state_digest"]
    assert len(drills.events("lost", "gang-lost")) == 1
    (flow_run,) = drills.api.flow_runs("lost")
    counts = {run["name"]: run["run_count"] for run in drills.api.task_runs(flow_run["id"])}
    assert counts["train to step 20"] == 2
    assert {name for name, count in counts.items() if count != 1} == {"train to step 20"}
    assert "attempt 2 of 4 to reach step 20" in ended.err
    assert sorted(name for name in counts if name.startswith("train to step")) == [
        f"train to step {step}" for step in (10, 20, 30, 40)
    ]


def test_a_batch_that_kills_every_gang_exhausts_the_retries(drills: Drills) -> None:
    """ray-project/ray#29927: the end is one line that says what died, where, and how often it was tried."""
    poison = {"DRILL_POISON": f"die:{sample_of(13)}"}
    words = ["--set", "fault_tolerance.max_retries=1"]
    with drills.start("doomed", *words, environment=poison) as command:
        ended = command.end()
        command.wait_gone(10)
    assert ended.status == 1
    assert "attempt 2 of 2 to reach step 20" in ended.complaint
    assert "last step 12" in ended.complaint
    assert "signal 9" in ended.complaint
    assert drills.state("doomed")[0] == "failed"
    (flow_run,) = drills.api.flow_runs("doomed")
    assert flow_run["state"]["type"] == "FAILED"


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    """Somebody's own Dask workers."""
    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
    ) as found:
        yield found


def test_workers_of_a_cluster_that_exists_are_used_and_left_as_they_were(
    drills: Drills, calm: dict[str, Any], cluster: LocalCluster
) -> None:
    """dask/distributed#2617: they are free again when the command ends."""
    ended = drills.train("guest", "--set", f"cluster.address={cluster.scheduler_address}", "--json")
    assert ended.status == 0, ended.err
    assert ended.document["state_digest"] == calm["state_digest"]
    with Client(cluster) as client:
        assert len(client.scheduler_info(n_workers=-1)["workers"]) == 2
        assert client.submit(os.getpid).result() in [child.pid for child in psutil.Process().children(recursive=True)]
        assert sum(client.run(lambda: len(psutil.Process().children())).values()) == 0


def test_a_cluster_that_does_not_answer_is_status_2(drills: Drills, worn: dict[str, Any]) -> None:
    """Beside another run, since Dask takes its time."""
    ended = worn["nobody"]
    assert ended.status == 2
    assert "cluster.address=tcp://127.0.0.1:9" in ended.complaint
    assert not drills.folder("nobody").exists()
