"""How far a run is, as the live line tells it."""

from __future__ import annotations

from typing import Any

import zoo

from openclaw_tasks.cli.progress import Standing


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "time": "", "mono": 0.0, "attempt": 1, **fields}


def step(number: int) -> dict[str, Any]:
    return {**event("step", step=number, loss=1.5, ranks=2), "mono": float(number)}


def test_a_run_is_starting_then_training_then_proving_then_evaluated() -> None:
    standing = Standing(zoo.job(steps=3))
    stages = [standing.stage]
    for happened in (
        event("attempt-started", resumed_step=0),
        event("stage", name="profile_nodes", segment=None, seconds=1.0),
        step(1),
        step(3),
        event("evaluated", metrics={}),
    ):
        standing.take(happened)
        stages.append(standing.stage)

    assert stages == ["starting", "training", "training", "training", "proving", "evaluated"]


def test_the_line_tells_loss_speed_ranks_and_durable_step() -> None:
    standing = Standing(zoo.job(steps=9))
    for happened in (step(1), step(5), event("durable", step=4)):
        standing.take(happened)

    assert standing.text() == "loss 1.5000  1.0 steps/s  2 ranks  durable 4"
