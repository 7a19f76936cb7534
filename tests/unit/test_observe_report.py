"""The report that a run's events come to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openclaw_tasks.errors import DamagedError
from openclaw_tasks.observe.report import LossEnds, RecoveryCost, Report, WorldSize, fold_report

FIELDS = [
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


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, **fields}


def steps(first: int, last: int, ranks: int = 2) -> list[dict[str, Any]]:
    return [event("step", step=step, loss=10.0 - step, ranks=ranks) for step in range(first, last + 1)]


def test_a_whole_run_over_two_attempts() -> None:
    report = fold_report(
        [
            event("attempt-started", planned_steps=8, resumed_step=0, recipe="m:C"),
            event("generation", number=1, from_step=1, ranks=2),
            *steps(1, 3),
            event(
                "recovery",
                step=4,
                cause="rank 1 killed",
                detected_seconds=0.05,
                recovered_seconds=0.1,
                overhead_seconds=0.2,
                steps_lost=0,
            ),
            event("generation", number=2, from_step=4, ranks=1),
            *steps(4, 4, ranks=1),
            event("durable", step=4, log_bytes=100, degraded=True, group="1-w/1"),
            event("boundary", step=4, weights_digest="w4", state_digest="s4", applied=4),
            event("base", step=4, bytes=1000, degraded=False),
            event("stage", name="train_segment", segment=1, seconds=2.0, stage_attempt=1),
            event("verified", step=4, ok=True, reason=None),
            *steps(5, 6, ranks=3),
            event("attempt-started", planned_steps=8, resumed_step=4, recipe="m:C"),
            event("generation", number=3, from_step=5, ranks=2),
            event("durable", step=4, degraded=False, group="1-w/1"),
            *steps(5, 8),
            event("durable", step=8, log_bytes=90, degraded=False, group="2-w/1"),
            event("boundary", step=8, weights_digest="w8", state_digest="s8", applied=7),
            event("base", step=8, bytes=1001, degraded=False),
            event("verified", step=8, ok=False, reason="damaged"),
            event("stage", name="train_segment", segment=2, seconds=1.5, stage_attempt=1),
            event(
                "finished",
                final_step=8,
                weights_digest="w8",
                state_digest="s8",
                full_checkpoint_bytes=999,
                applied=7,
            ),
        ],
        run="a-run",
    )
    assert report == Report(
        run="a-run",
        recipe="m:C",
        planned_steps=8,
        final_step=8,
        applied=7,
        weights_digest="w8",
        state_digest="s8",
        loss=LossEnds(9.0, 2.0),
        world_sizes=(WorldSize(1, 2), WorldSize(4, 1), WorldSize(5, 2)),
        recoveries=(RecoveryCost(4, "rank 1 killed", 0.05, 0.1, 0.2, 0),),
        durable_step=8,
        log_bytes=190,
        base_bytes=2001,
        full_checkpoint_bytes=999,
        degraded_groups=0,
        verified_steps=(4,),
        stage_seconds={"train_segment": 3.5},
    )


def test_what_is_not_known_is_null_and_never_zero() -> None:
    document = fold_report([], run="a-run").document()
    assert list(document) == FIELDS
    assert document["run"] == "a-run"
    assert document["loss"] == {"first": None, "last": None}
    for name in ("world_sizes", "recoveries", "verified_steps"):
        assert document[name] == []
    assert document["stage_seconds"] == {}
    others = set(FIELDS) - {"run", "loss", "world_sizes", "recoveries", "verified_steps", "stage_seconds"}
    assert {document[name] for name in others} == {None}


def test_an_attempt_that_was_killed_has_no_digest_of_a_step_it_did_not_end_at() -> None:
    events = [
        event("attempt-started", planned_steps=9, resumed_step=0),
        *steps(1, 4),
        event("boundary", step=4, weights_digest="w4", state_digest="s4", applied=4),
    ]
    at_boundary = fold_report(events, run="r")
    assert (at_boundary.final_step, at_boundary.weights_digest, at_boundary.applied) == (4, "w4", 4)
    past_it = fold_report([*events, *steps(5, 6, ranks=3), event("failed", error="gone")], run="r")
    assert (past_it.final_step, past_it.weights_digest, past_it.applied) == (6, None, None)
    assert past_it.planned_steps == 9


def test_starting_again_goes_back_to_what_was_durable() -> None:
    events = [*steps(1, 6), event("durable", step=4, log_bytes=5), event("attempt-started", resumed_step=4)]
    report = fold_report(events, run="r")
    assert (report.final_step, report.durable_step, report.log_bytes) == (4, 4, 5)
    assert report.degraded_groups == 0


def test_world_sizes_are_those_that_steps_were_done_by() -> None:
    """A formation in which no step was done is none, and what a later attempt does again counts as done then."""
    events = [
        event("generation", from_step=1, ranks=2),
        *steps(1, 4),
        event("generation", from_step=5, ranks=1),
        event("generation", from_step=5, ranks=2),
        *steps(5, 8),
        event("generation", from_step=9, ranks=3),
        *steps(9, 9, ranks=3),
        event("attempt-started", resumed_step=7),
        *steps(8, 9, ranks=1),
    ]
    assert fold_report(events, run="r").world_sizes == (WorldSize(1, 2), WorldSize(8, 1))


def test_a_loss_that_is_not_finite_is_null() -> None:
    report = fold_report([event("step", step=1, loss=None), event("step", step=2, loss=float("nan"))], run="r")
    assert report.loss == LossEnds(None, None)
    assert report.final_step == 2


def test_a_report_is_read_back_from_its_json_and_by_key() -> None:
    report = Report(
        run="r",
        world_sizes=(WorldSize(1, 2),),
        recoveries=(RecoveryCost(1, "x", 0.1, None, None, 0),),
        verified_steps=(4, 8),
        stage_seconds={"plan": 0.5},
        loss=LossEnds(1.0, 0.5),
    )
    assert Report.from_json(report.to_json()) == report
    assert json.loads(report.to_json()) == report.document()
    assert report.loss["first"] == report.loss.first == 1.0
    assert report.recoveries[0]["steps_lost"] == 0
    with pytest.raises(KeyError):
        report.loss["middle"]
    for text in ("", "[]", "{}", '{"run": 3, "extra": 1}'):
        with pytest.raises(DamagedError, match="not a report"):
            Report.from_json(text)
