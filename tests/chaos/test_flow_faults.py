"""`openclaw train` through what strikes it: ranks, agents, targets. It ends with the undisturbed run's bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from drills import RECOVERY_FIELDS, REPORT_FIELDS, STEPS, Drills, Struck

pytestmark = [pytest.mark.chaos, pytest.mark.flow]


def assert_same_bits(report: dict[str, Any], calm: dict[str, Any]) -> None:
    for name in ("final_step", "applied", "weights_digest", "state_digest", "loss", "durable_step"):
        assert report[name] == calm[name]


def rank_counts(drills: Drills, run: str) -> list[int]:
    """With how many ranks each generation until now began."""
    return [event["ranks"] for event in drills.events(run, "generation")]


def test_the_report_of_an_undisturbed_run_has_exactly_the_contracts_fields(calm: dict[str, Any]) -> None:
    assert list(calm) == REPORT_FIELDS
    assert (calm["run"], calm["recipe"]) == ("calm", "drill_recipe:Drill")
    assert calm["planned_steps"] == calm["final_step"] == calm["applied"] == calm["durable_step"] == STEPS
    assert list(calm["loss"]) == ["first", "last"]
    assert calm["loss"]["last"] < calm["loss"]["first"]
    assert calm["world_sizes"] == [{"from_step": 1, "ranks": 2}]
    assert calm["recoveries"] == []
    assert calm["degraded_groups"] == 0
    assert calm["verified_steps"] == [10, 20, 30, 40]
    assert all(calm[name] > 0 for name in ("log_bytes", "base_bytes", "full_checkpoint_bytes"))
    assert {"profile_nodes", "plan", "train_segment", "encode_checkpoint", "verify_checkpoint", "evaluate"} == set(
        calm["stage_seconds"]
    )
    assert all(len(calm[name]) == 64 for name in ("weights_digest", "state_digest"))


def test_a_killed_rank_and_a_deleted_target_change_no_bit(drills: Drills, calm: dict[str, Any], struck: Struck) -> None:
    """meta-pytorch/torchft#164: survivors go on at once; ray-project/ray#47939: a lost target stops nothing."""
    ended = struck.ended
    report = ended.document
    assert report == json.loads(struck.report_file.read_text())
    assert list(report) == REPORT_FIELDS
    assert_same_bits(report, calm)
    (recovery,) = report["recoveries"]
    assert list(recovery) == RECOVERY_FIELDS
    assert (recovery["step"], recovery["cause"], recovery["steps_lost"]) == (6, "rank killed by signal 9", 0)
    assert 0 < recovery["detected_seconds"] <= recovery["recovered_seconds"]
    assert recovery["overhead_seconds"] > 0
    assert report["world_sizes"][:2] == [{"from_step": 1, "ranks": 2}, {"from_step": 6, "ranks": 1}]
    assert report["degraded_groups"] > 0
    assert report["verified_steps"] == calm["verified_steps"]
    assert [event["text"] for event in drills.events("struck", "fault")] == ["kill-rank:1@6", "delete-target:2@17"]
    assert not drills.targets("struck")[2].exists()
    assert "recovered" in ended.err
    assert "target 2" in ended.err


def test_a_frozen_rank_and_a_killed_agent_change_no_bit(drills: Drills, calm: dict[str, Any]) -> None:
    """meta-pytorch/torchft#164: a stopped rank is found by its progress, long before any exchange's deadline."""
    # Slow until the stopped rank's replacement has joined: the killed agent is not to take the only copy with it.
    faults = ("--fault", "stop-rank:0@6", "--fault", "kill-agent:1@25")
    with drills.start("frozen", *faults, "--json", pause_seconds=0.1) as command:
        command.wait_for(lambda: rank_counts(drills, "frozen") == [2, 1, 2], "replacement of the stopped rank")
        drills.release("frozen")
        ended = command.end()
    assert ended.status == 0, ended.err
    assert_same_bits(ended.document, calm)
    recoveries = ended.document["recoveries"]
    assert [(one["step"], one["cause"], one["steps_lost"]) for one in recoveries] == [
        (6, "frozen", 0),
        (25, "agent lost", 0),
    ]
    assert all(one["detected_seconds"] < 8 for one in recoveries)
    assert [event["text"] for event in drills.events("frozen", "fault")] == ["stop-rank:0@6", "kill-agent:1@25"]


def test_a_finished_run_says_so_and_does_nothing(drills: Drills, calm: dict[str, Any], tmp_path: Path) -> None:
    """Starting it again gives the same report, in every way one can ask for it."""
    before, flow_runs = drills.events("calm"), drills.api.flow_runs("calm")
    report_file = tmp_path / "report.json"
    ended = drills.train("calm", "--report", report_file)
    assert ended.status == 0, ended.err
    assert ended.out.splitlines()[0] == "run 'calm' is finished: step 40 of 40; nothing was done"
    assert ended.err == ""
    assert json.loads(report_file.read_text()) == calm
    assert drills.train("calm", "--json").document == calm
    assert drills.events("calm") == before
    assert len(drills.api.flow_runs("calm")) == len(flow_runs)
