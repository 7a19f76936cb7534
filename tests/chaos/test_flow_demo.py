"""`openclaw demo`, on a model of a moment: what it proves is proven, and it leaves what it says it leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import openclaw
from drills import REPORT_FIELDS, Drills

pytestmark = [pytest.mark.chaos, pytest.mark.flow]

SMALL = ("steps=20", "segment_steps=10", "global_batch=8", "recipe_args.width=16", "recipe_args.layers=1")


def test_the_demo_proves_the_bits_through_a_killed_rank_and_a_deleted_target(drills: Drills, tmp_path: Path) -> None:
    report_file = tmp_path / "report.json"
    sets = [word for value in SMALL for word in ("--set", value)]
    ended = openclaw("demo", *sets, "--report", report_file, home=drills.home)
    assert ended.status == 0, ended.err
    report = json.loads(report_file.read_text())
    assert list(report) == REPORT_FIELDS
    (recovery,) = report["recoveries"]
    assert (recovery["step"], recovery["cause"], recovery["steps_lost"]) == (10, "rank killed by signal 9", 0)
    lines = ended.out.splitlines()
    digests = [line.split()[2] for line in lines if line.startswith("weights, ")]
    assert digests == [report["weights_digest"]] * 2
    assert "the same bits" in ended.out
    assert "steps lost            0" in lines
    run = report["run"]
    assert [event["text"] for event in drills.events(run, "fault")] == ["kill-rank:1@10", "delete-target:2@12"]
    folder = drills.folder(run)
    assert f"files      {folder}" in lines
    assert [target.exists() for target in drills.targets(run)] == [True, True, False, True, True]
    # The undisturbed run has served: of it nothing is left.
    assert [path.name for path in folder.parent.glob("demo-*")] == [run]
    assert [path.stem for path in (drills.home / "index").glob("demo-*")] == [run]
    exported = tmp_path / "demo.safetensors"
    told = openclaw("export", run, "--out", exported, "--json", home=drills.home)
    assert told.document["weights_digest"] == report["weights_digest"]
    assert exported.exists()
