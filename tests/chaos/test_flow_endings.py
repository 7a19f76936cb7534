"""Whatever ends `openclaw train`, no process is left after it, and the same command goes on at that very step."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from commands import Ended, Started
from drills import STEPS, Drills, last_step

pytestmark = [pytest.mark.chaos, pytest.mark.flow]

GONE_SECONDS = 10


def goes_on_to_the_same_bits(drills: Drills, run: str, calm: dict[str, Any]) -> None:
    ended = drills.train(run, "--json")
    assert ended.status == 0, ended.err
    for name in ("final_step", "applied", "weights_digest", "state_digest"):
        assert ended.document[name] == calm[name]
    assert ended.document["verified_steps"] == calm["verified_steps"]


def resumed_at_that_very_step(drills: Drills, run: str, attempt: int) -> None:
    """All that was reported done was in storage for the next start; the ranks may have ended one more step."""
    reached = last_step(drills.events(run), attempt)
    assert drills.resumed_steps(run)[attempt] in (reached, reached + 1)


def test_kill_flow_ends_with_137_and_the_same_command_goes_on(drills: Drills, calm: dict[str, Any]) -> None:
    """PrefectHQ/prefect#16746, clemsgrs/slide2vec#131: nothing of it lives on, and the server learns of its death."""
    with drills.start("killed", "--fault", "kill-flow@15") as command:
        assert command.end().status == 137
        command.wait_gone(GONE_SECONDS)
    assert drills.standing("killed") == "interrupted"  # though nobody was left to write it down
    goes_on_to_the_same_bits(drills, "killed", calm)
    resumed = drills.resumed_steps("killed")[1]
    assert resumed in (15, 16)
    # None is computed twice. Those that the ranks ended at the flow's death nobody could report: of step 14 it may have
    # been told after one rank was at the point of step 15 where the flow is struck.
    steps = [event["step"] for event in drills.events("killed", "step")]
    later = [*range(resumed + 1, STEPS + 1)]
    assert steps in ([*range(1, 14), *later], [*range(1, 15), *later])
    first, second = drills.api.flow_runs("killed")
    assert (first["state"]["type"], second["state"]["type"]) == ("CRASHED", "COMPLETED")
    assert second["id"] in first["state"]["message"]


def interrupt(command: Started) -> None:
    os.killpg(command.process.pid, signal.SIGINT)  # as a terminal does at Ctrl-C


@dataclass
class Life:
    """One run that is ended in each way, one after the other: how each start ended."""

    statuses: dict[str, int] = field(default_factory=dict)
    last_lines: dict[str, str] = field(default_factory=dict)
    second: Ended | None = None
    """A start while the first was alive, whose pid was `first_pid`."""
    first_pid: int = 0


@pytest.fixture(scope="module")
def life(drills: Drills) -> Life:
    told = Life()

    def live(way: str, end: Callable[[Started], None], pause_seconds: float = 0.1) -> None:
        with drills.start("life", pause_seconds=pause_seconds) as command:
            drills.wait_for_steps(command, "life", attempt=len(told.statuses) + 1, count=2)
            end(command)
            struck = time.monotonic()
            ended = command.end()
            command.wait_gone(GONE_SECONDS + struck - time.monotonic())
            told.statuses[way], told.last_lines[way] = ended.status, ended.err.splitlines()[-1]

    def start_again_then_interrupt(command: Started) -> None:
        told.first_pid = command.process.pid
        told.second = drills.train("life")
        assert command.process.poll() is None
        interrupt(command)

    def cancel(command: Started) -> None:
        flow_run = drills.api.flow_runs("life")[-1]["id"]
        state = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
        assert drills.api.post(f"/flow_runs/{flow_run}/set_state", state)["status"] == "ACCEPT"
        while drills.api.flow_runs("life")[-1]["state"]["type"] == "CANCELLING":
            time.sleep(0.02)
        assert command.pids_of("openclaw_tasks.gang", "multiprocessing.spawn") == []

    live("ctrl-c", start_again_then_interrupt, pause_seconds=0.5)
    live("sigterm", lambda command: command.process.terminate())
    live("cancel", cancel)
    live("sigkill", lambda command: command.process.kill())
    return told


def test_a_start_of_a_live_run_is_refused_naming_its_holder(life: Life) -> None:
    """The one that lives is not disturbed."""
    assert life.second is not None
    assert life.second.status == 2
    assert life.second.complaint.startswith("run 'life' is live: held by ")
    assert f"pid {life.first_pid}" in life.second.complaint


def test_ctrl_c_ends_in_order(drills: Drills, life: Life) -> None:
    """clemsgrs/slide2vec#131: a terminal's SIGINT reaches every process of its group."""
    assert life.statuses["ctrl-c"] == 130
    assert life.last_lines["ctrl-c"] == "openclaw: interrupted; the same command goes on where it was"
    resumed_at_that_very_step(drills, "life", 1)


def test_sigterm_ends_in_order(drills: Drills, life: Life) -> None:
    """pytorch/pytorch#67742: SIGTERM means leave: finish the step, flush the log."""
    assert life.statuses["sigterm"] == 143
    assert life.last_lines["sigterm"] == "openclaw: told to end (SIGTERM); the same command goes on where it was"
    resumed_at_that_very_step(drills, "life", 2)


def test_a_cancel_in_the_ui_ends_in_order(drills: Drills, life: Life) -> None:
    """PrefectHQ/prefect#17593: Cancelled means that nothing trains any more."""
    assert life.statuses["cancel"] == 1
    assert life.last_lines["cancel"] == (
        "openclaw: run 'life' was cancelled; the same command goes on with it where it was"
    )
    resumed_at_that_very_step(drills, "life", 3)


def test_a_killed_flow_loses_no_step_and_is_taken_over_at_once(
    drills: Drills, life: Life, calm: dict[str, Any]
) -> None:
    """clemsgrs/slide2vec#131: SIGKILL, from outside; its ranks end their step, its agents flush what is final."""
    assert life.statuses["sigkill"] == 137
    goes_on_to_the_same_bits(drills, "life", calm)
    # Nobody could report what the ranks still did after the flow's death.
    assert drills.resumed_steps("life")[4] >= last_step(drills.events("life"), 4)
    plan = [event["seconds"] for event in drills.events("life", "stage") if event["name"] == "plan"]
    assert plan[-1] < 5, "it waited for a lease of 10 s"


def test_the_server_knows_how_each_start_ended(drills: Drills, life: Life) -> None:
    """PrefectHQ/prefect#16746: none is shown Running for ever."""
    assert life.second is not None
    found = drills.api.flow_runs("life")
    assert [flow_run["state"]["type"] for flow_run in found] == [
        "CANCELLED",
        "FAILED",
        "CRASHED",
        "CANCELLED",
        "CRASHED",
        "COMPLETED",
    ]


def test_ctrl_c_while_it_starts_leaves_nothing(drills: Drills) -> None:
    """Workers, agents, launchers: whatever is up already goes, and no run is known."""
    with drills.start("never") as command:
        command.wait_for(lambda: command.pids_of("openclaw_tasks.gang.agent"), "agent")
        interrupt(command)
        ended = command.end()
        assert ended.status == 130
        assert ended.complaint == "interrupted; the same command goes on where it was"
        command.wait_gone(GONE_SECONDS)
    assert not (drills.home / "index" / "never.json").exists()
    assert not drills.folder("never").exists()
