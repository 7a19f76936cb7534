"""Whatever ends `openclaw train`, no process is left after it, and the same command goes on at that very step."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from commands import Started
from drills import STEPS, Drills, last_step

pytestmark = [pytest.mark.chaos, pytest.mark.flow]

GONE_SECONDS = 10
PAUSE_SECONDS = 0.02


def goes_on_to_the_same_bits(drills: Drills, run: str, calm: dict[str, Any]) -> None:
    ended = drills.train(run, "--json")
    assert ended.status == 0, ended.err
    for name in ("final_step", "applied", "weights_digest", "state_digest"):
        assert ended.document[name] == calm[name]
    assert ended.document["verified_steps"] == calm["verified_steps"]


def resumed_at_that_very_step(drills: Drills, run: str, attempt: int) -> None:
    """What ranks had done when they were told to stop is in storage; they may have ended one more step."""
    reached = last_step(drills.events(run), attempt)
    assert drills.resumed_steps(run)[attempt] in (reached, reached + 1)


def test_kill_flow_ends_with_137_and_the_same_command_goes_on(drills: Drills, calm: dict[str, Any]) -> None:
    """PrefectHQ/prefect#16746, clemsgrs/slide2vec#131: nothing of it lives on, and the server learns of its death."""
    with drills.start("killed", "--fault", "kill-flow@15") as command:
        assert command.end().status == 137
        command.wait_gone(GONE_SECONDS)
    goes_on_to_the_same_bits(drills, "killed", calm)
    assert drills.resumed_steps("killed") == [0, 15]
    steps = [event["step"] for event in drills.events("killed", "step")]
    assert steps == sorted(set(steps))
    assert set(range(1, STEPS + 1)) - set(steps) <= {15}
    first, second = drills.api.flow_runs("killed")
    assert (first["state"]["type"], second["state"]["type"]) == ("CRASHED", "COMPLETED")
    assert second["id"] in first["state"]["message"]


def interrupt(command: Started) -> None:
    os.killpg(command.process.pid, signal.SIGINT)  # as a terminal does at Ctrl-C


@pytest.fixture(scope="module")
def life(drills: Drills) -> dict[str, tuple[int, str]]:
    """One run that is ended in each way, one after the other; by way: the status and the last line."""
    ends: dict[str, tuple[int, str]] = {}

    def live(way: str, step: int, end: Any) -> None:
        with drills.start("life", pause_seconds=PAUSE_SECONDS) as command:
            command.wait_for_step("life", step, attempt=len(ends) + 1)
            end(command)
            ended = command.end()
            struck = time.monotonic()
            command.wait_gone(GONE_SECONDS)
            assert time.monotonic() - struck < GONE_SECONDS
            last = ended.err.splitlines()[-1]
            ends[way] = ended.status, last

    def cancel(command: Started) -> None:
        flow_run = drills.api.flow_runs("life")[-1]["id"]
        state = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
        assert drills.api.post(f"/flow_runs/{flow_run}/set_state", state)["status"] == "ACCEPT"
        while command.pids():
            # Cancelled only when no process is left.
            told = drills.api.flow_runs("life")[-1]["state"]["type"]
            assert told == "CANCELLING" or command.pids() in ([], [command.process.pid])
            time.sleep(0.05)

    live("ctrl-c", 3, interrupt)
    live("sigterm", 10, lambda command: command.process.terminate())
    live("cancel", 15, cancel)
    live("sigkill", 28, lambda command: command.process.kill())
    return ends


def test_ctrl_c_ends_in_order(drills: Drills, life: dict[str, tuple[int, str]]) -> None:
    """clemsgrs/slide2vec#131: a terminal's SIGINT reaches every process of its group."""
    status, last = life["ctrl-c"]
    assert status == 130
    assert last == "openclaw: interrupted; the same command goes on where it was"
    resumed_at_that_very_step(drills, "life", 1)


def test_sigterm_ends_in_order(drills: Drills, life: dict[str, tuple[int, str]]) -> None:
    """pytorch/pytorch#67742: SIGTERM means leave: finish the step, flush the log."""
    status, last = life["sigterm"]
    assert status == 143
    assert last == "openclaw: told to end (SIGTERM); the same command goes on where it was"
    resumed_at_that_very_step(drills, "life", 2)


def test_a_cancel_in_the_ui_ends_in_order(drills: Drills, life: dict[str, tuple[int, str]]) -> None:
    """PrefectHQ/prefect#17593: Cancelled means that nothing trains any more."""
    status, last = life["cancel"]
    assert status == 1
    assert last == "openclaw: run 'life' was cancelled; the same command goes on with it where it was"
    resumed_at_that_very_step(drills, "life", 3)


def test_a_killed_flow_loses_no_step(drills: Drills, life: dict[str, tuple[int, str]], calm: dict[str, Any]) -> None:
    """clemsgrs/slide2vec#131: SIGKILL, from outside; its ranks end their step, its agents flush what is final."""
    assert life["sigkill"][0] == 137
    goes_on_to_the_same_bits(drills, "life", calm)
    resumed_at_that_very_step(drills, "life", 4)


def test_the_server_knows_how_each_start_ended(drills: Drills, life: dict[str, tuple[int, str]]) -> None:
    """PrefectHQ/prefect#16746: none is shown Running for ever."""
    del life
    found = drills.api.flow_runs("life")
    assert [flow_run["state"]["type"] for flow_run in found] == [
        "CANCELLED",
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
    assert not drills.targets("never")[0].exists()


def test_a_live_run_is_refused_to_a_second_start_and_taken_over_at_once_when_its_holder_has_died(
    drills: Drills,
) -> None:
    """The second start tells who holds the run, and changes nothing for the first."""
    with drills.start("held", pause_seconds=0.2) as first:
        first.wait_for_step("held", 2)
        second = drills.train("held")
        assert second.status == 2
        assert "is live" in second.complaint
        assert f"pid {first.process.pid}" in second.complaint
        assert first.process.poll() is None
        first.process.kill()
        first.wait_gone(GONE_SECONDS)
    with drills.start("held") as third:
        third.wait_for_step("held", 10, attempt=3)
        third.process.kill()
        third.wait_gone(GONE_SECONDS)
    (plan,) = [e for e in drills.events("held", "stage") if e["name"] == "plan" and e["attempt"] == 3]
    assert plan["seconds"] < 5, "it waited for a lease of 10 s"
