"""`replay`: rebuilding a state from its log, beside training it again. The demo's model on the demo's ranks.

*A step replayed* is what a step adds to `restore_state`: reading its stripes, checking digests, unpacking, `apply`.
The time of a restore that replays nothing is taken off the time of one that replays as many steps as lie between two
bases. *A step trained* is the step's own time in the gang that made the log.

*Recovery of a dead gang*: every rank is killed, just before a new base is due. From the kill until a fresh gang has
done the last step that was known to be done: detecting, flushing, starting ranks, building, meshing and restoring are
in it. Beside it as many ranks of the same model load a full save of some steps before (torch.load) and train to that
step; starting them, building and meshing are *not* in it. All ways must lead to the same bits.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
from gang_runs import GangRuns, Outcome, Scene

from bench.measures import Measure, at_least, at_most, median, must_be, plain, spread
from bench.overhead_process import Answer
from bench.replay_worker import RankProcess, ask_all
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.gang.placing import WarmAgents

REPLAY_LIMIT = 1 / 20
RECOVERY_LIMIT = 6.75
MOMENTS = {
    "the loss is found": "detected_seconds",
    "a formation is announced": "announced_seconds",
    "ranks have meshed": "meshed_seconds",
    "ranks compute": "recovered_seconds",
}


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long, and how often. The last base before `kill_step` is of the segment before the run's last one."""

    steps: int
    segment_steps: int
    back_steps: int  # from the full save to `kill_step`
    rounds: int
    restores: int

    @property
    def kill_step(self) -> int:
        return self.steps - 1

    @property
    def base_step(self) -> int:
        return self.steps - self.segment_steps

    def job(self, number: int) -> TrainJob:
        changes = {"run": f"replay-{number}", "steps": self.steps, "segment_steps": self.segment_steps}
        return TrainJob.load("demo", changes)


WHOLE = Lengths(steps=80, segment_steps=20, back_steps=50, rounds=3, restores=9)
SHORT = Lengths(steps=12, segment_steps=4, back_steps=6, rounds=1, restores=3)


def run(short: bool) -> list[Measure]:
    lengths = SHORT if short else WHOLE
    with tempfile.TemporaryDirectory() as folder, WarmAgents(Path(folder) / "logs") as agents:
        rank_environment = psutil.Process(agents.zygote_pid).environ()
        runs = GangRuns(agents, Path(folder), random.Random(1))
        lost_gangs = [_lose_gang(runs, lengths, number) for number in range(lengths.rounds)]
        job = lost_gangs[0].outcome.job
        trained = _train_again(job, lengths, Path(folder) / "full.pt", rank_environment)
        restored, bases_only = _restore(job, lengths, rank_environment)
    digests = {answer["digest"] for answer in (*trained, *restored)}
    return [
        *_replayed_step(lost_gangs, lengths, restored, bases_only),
        *_recovery(lost_gangs, lengths, trained, restored),
        must_be("all ways lead to the same bits", len(digests), 1),
    ]


@dataclass(frozen=True, slots=True)
class LostGang:
    """A run all of whose ranks were killed once."""

    outcome: Outcome
    struck_at: float

    def step_seconds(self, until: int) -> list[float]:
        """Of the steps before the kill, but for the first two, in which memory is touched for the first time."""
        steps = [event for event in self.outcome.of("step") if event["mono"] < self.struck_at]
        return [event["seconds"] for event in steps if 2 < event["step"] <= until]

    def back_after(self, step: int) -> float:
        """Seconds from the kill until `step` was done, or had been restored."""
        (lost,) = self.outcome.of("gang-lost")
        first, *later = (event for event in self.outcome.of("step") if event["mono"] > lost["mono"])
        if first["step"] == step + 1:
            return float(first["mono"] - first["seconds"] - self.struck_at)
        done = next(event for event in (first, *later) if event["step"] == step)
        return float(done["mono"] - self.struck_at)

    def part(self, name: str) -> float:
        """Seconds from the kill to a moment that the event of the recovery tells."""
        return float(self.outcome.of("recovery")[0][name])


def _lose_gang(runs: GangRuns, lengths: Lengths, number: int) -> LostGang:
    job = lengths.job(number)
    struck_at = 0.0

    def kill_all(scene: Scene) -> None:
        nonlocal struck_at
        scene.wait("step", step=lengths.kill_step)
        ranks = [scene.pid(rank) for rank in range(job.cluster.workers)]
        struck_at = time.monotonic()
        for rank in ranks:
            scene.strike(rank)

    outcome = runs.run(job, disturb=kill_all, prove=True)
    if outcome.error is not None:
        raise outcome.error
    return LostGang(outcome, struck_at)


def _train_again(job: TrainJob, lengths: Lengths, file: Path, environment: Mapping[str, str]) -> list[Answer]:
    """What it takes from a full save, `rounds` times, as told by rank 0."""
    with ExitStack() as stack:
        ranks = [stack.enter_context(RankProcess(job, environment)) for _ in range(job.cluster.workers)]
        addresses = [rank.answer()["address"] for rank in ranks]
        for number, rank in enumerate(ranks):
            rank.tell("join", rank=number, addresses=addresses)
        for rank in ranks:
            rank.answer()
        ask_all(ranks, "train", until=lengths.kill_step - lengths.back_steps)
        ranks[0].ask("save", file=str(file))
        rounds = [ask_all(ranks, "again", file=str(file), until=lengths.kill_step) for _ in range(lengths.rounds)]
    return [answers[0] for answers in rounds]


def _restore(job: TrainJob, lengths: Lengths, environment: Mapping[str, str]) -> tuple[list[Answer], list[Answer]]:
    """Restores of the step that was lost, and of the base before it, in turns."""
    with RankProcess(job, environment) as rank:
        rank.answer()
        rank.ask("restore", step=lengths.kill_step)  # the first one finds a cold process
        pairs = [
            (rank.ask("restore", step=lengths.kill_step), rank.ask("restore", step=lengths.base_step))
            for _ in range(lengths.restores)
        ]
    restored, bases_only = zip(*pairs, strict=True)
    return list(restored), list(bases_only)


def _replayed_step(
    lost_gangs: Sequence[LostGang], lengths: Lengths, restored: Sequence[Answer], bases_only: Sequence[Answer]
) -> list[Measure]:
    training = median(seconds for lost in lost_gangs for seconds in lost.step_seconds(lengths.kill_step))
    replays = [
        (whole["seconds"] - base["seconds"]) / (whole["records"] - base["records"])
        for whole, base in zip(restored, bases_only, strict=True)
    ]
    replay = median(replays)
    return [
        plain("a step trained", 1000 * training, "ms"),
        plain("a step replayed", 1000 * replay, "ms"),
        *spread("a step replayed", [1000 * value for value in replays], "ms"),
        at_most("a step replayed, of a step trained", replay / training, REPLAY_LIMIT),
    ]


def _recovery(
    lost_gangs: Sequence[LostGang], lengths: Lengths, trained: Sequence[Answer], restored: Sequence[Answer]
) -> list[Measure]:
    recovery = median(lost.back_after(lengths.kill_step) for lost in lost_gangs)
    again = median(answer["seconds"] for answer in trained)
    replayed = restored[0]["records"]
    return [
        plain("dead gang: from the kill to the same step", recovery, "s"),
        *(
            plain(f"dead gang: from the kill until {moment}", median(lost.part(name) for lost in lost_gangs), "s")
            for moment, name in MOMENTS.items()
        ),
        plain(f"restoring alone, {replayed} steps replayed", median(answer["seconds"] for answer in restored), "s"),
        plain(f"full save of {lengths.back_steps} steps ago: load", median(a["load_seconds"] for a in trained), "s"),
        plain(f"full save of {lengths.back_steps} steps ago: load and train again", again, "s"),
        at_least("dead gang recovered from base and log, times faster", again / recovery, RECOVERY_LIMIT),
    ]
