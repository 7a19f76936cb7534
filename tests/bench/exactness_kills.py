"""A rank killed at random steps, for each codec: every bit that the run leaves is the undisturbed run's."""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path

from gang_runs import GangRuns, Outcome, assert_exact

from bench.measures import Measure, must_be
from openclaw_tasks.errors import OpenClawError
from openclaw_tasks.gang.placing import WarmAgents

CODECS = ("bf16", "exact", "int8")
RANKS = 3
STEPS = 40


def killed_ranks(kills: int, seed: int) -> list[Measure]:
    """One kill in each run. Compared are the digests and losses, and every record in storage, byte by byte."""
    folder = Path(os.environ["OPENCLAW_HOME"]) / "kills"
    folder.mkdir()
    rng = random.Random(seed)
    measures = []
    with WarmAgents(folder / "agents") as agents:
        runs = GangRuns(agents, folder, rng)
        for codec in CODECS:
            outcomes = []
            for step in rng.sample(range(1, STEPS + 1), kills):
                job = runs.job("Everything", workers=RANKS, codec=codec, steps=STEPS, segment_steps=20)
                outcome = runs.run(job, f"kill-rank:{rng.randrange(RANKS)}@{step}")
                outcomes.append((_has_struck(outcome, step), _is_exact(outcome)))
                shutil.rmtree(folder / job.run)
            struck, exact = (sum(column) for column in zip(*outcomes, strict=True))
            measures += [
                must_be(f"rank killed at random steps, {codec}: kills got over", struck, kills),
                must_be(f"rank killed at random steps, {codec}: runs with the undisturbed bits", exact, kills),
            ]
    return measures


def _has_struck(outcome: Outcome, step: int) -> bool:
    return [(told["step"], told["cause"]) for told in outcome.of("recovery")] == [(step, "rank killed by signal 9")]


def _is_exact(outcome: Outcome) -> bool:
    try:
        assert_exact(outcome)
    except (AssertionError, OpenClawError) as error:
        faults = [event["text"] for event in outcome.of("fault")]
        print(f"{outcome.job.codec}, {faults}: {type(error).__name__}: {error}", file=sys.stderr)
        return False
    return True
