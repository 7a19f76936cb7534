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
from dataclasses import dataclass
from pathlib import Path

from gang_runs import GangRuns, Outcome, Scene

from bench.measures import Measure, at_least, at_most, median, must_be, plain, spread
from bench.overhead_process import Answer, AskedProcess
from bench.replay_worker import ask_all, gang
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.gang.placing import WarmAgents
from openclaw_tasks.observe.events import Event

REPLAY_LIMIT = 1 / 20
RECOVERY_LIMIT = 6.75  # for a full save of so many steps ago:
RECOVERY_BACK_STEPS = 50
_COLD_STEPS = 2  # a gang's first ones, in which memory is touched for the first time


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long, and how often. The run's last two bases are of its last step and of a segment before it."""

    name: str
    model: Mapping[str, int]  # what differs from the demo's
    steps: int
    segment_steps: int
    restores: int
    back_steps: int = 0  # from the full save to the step that was lost
    rounds: int = 0  # of killing a gang, and of training again

    @property
    def lost_step(self) -> int:
        """The last step known to be done when the gang is killed."""
        return self.steps - 1

    @property
    def base_step(self) -> int:
        return self.steps - self.segment_steps

    def job(self, number: int) -> TrainJob:
        changes = {
            "run": f"replay-{len(self.model)}-{number}",
            "steps": self.steps,
            "segment_steps": self.segment_steps,
            **{f"recipe_args.{name}": value for name, value in self.model.items()},
        }
        return TrainJob.load("demo", changes)


WHOLE = (
    Lengths("demo", {}, steps=80, segment_steps=20, restores=9, back_steps=RECOVERY_BACK_STEPS, rounds=3),
    Lengths("10 M", {"width": 384, "layers": 6}, steps=20, segment_steps=10, restores=5),
)
SHORT = (Lengths("demo", {}, steps=12, segment_steps=4, restores=3, back_steps=6, rounds=1),)


def run(short: bool) -> list[Measure]:
    measures: list[Measure] = []
    with tempfile.TemporaryDirectory() as folder, WarmAgents(Path(folder) / "logs") as agents:
        runs = GangRuns(agents, Path(folder), random.Random(1))
        for lengths in SHORT if short else WHOLE:
            measures += _of_model(lengths, runs)
    return measures


def _of_model(lengths: Lengths, runs: GangRuns) -> list[Measure]:
    lost_gangs = [_lose_gang(runs, lengths, number) for number in range(lengths.rounds)]
    outcome = lost_gangs[0].outcome if lost_gangs else _finished(runs.run(lengths.job(0), prove=True))
    with gang(outcome.job) as ranks:
        restored, bases_only = _restore(ranks[0], lengths)
        measures = _replayed_step(lengths, outcome, restored, bases_only)
        ways = restored
        if lost_gangs:
            trained = _train_again(ranks, lengths, runs.folder / "full.pt")
            measures += _recovery(lengths, lost_gangs, trained, restored)
            ways = [*restored, *trained]
    num_states = len({answer["digest"] for answer in ways})
    return [*measures, must_be(f"{lengths.name}: different states that all ways lead to", num_states, 1)]


def _finished(outcome: Outcome) -> Outcome:
    if outcome.error is not None:
        raise outcome.error
    return outcome


@dataclass(frozen=True, slots=True)
class LostGang:
    """A run all of whose ranks were killed once."""

    outcome: Outcome
    struck_at: float

    @property
    def moments(self) -> Mapping[str, float]:
        """Seconds from the kill to what was told of the recovery."""
        (lost,) = self.outcome.of("gang-lost")
        told = {
            "the loss is found": lost,
            "the log is in storage": next(e for e in self.outcome.of("warning") if e["mono"] > lost["mono"]),
            "a formation is announced": next(e for e in self.outcome.of("generation") if e["mono"] > lost["mono"]),
        }
        computing = self._steps_after_loss()[0]
        moments = {name: event["mono"] - self.struck_at for name, event in told.items()}
        return {**moments, "ranks compute": computing["mono"] - computing["seconds"] - self.struck_at}

    def back_after(self, step: int) -> float:
        """Seconds from the kill until `step` was done again, or had been restored."""
        steps = self._steps_after_loss()
        if steps[0]["step"] == step + 1:
            return self.moments["ranks compute"]
        done = next(event for event in steps if event["step"] == step)
        return float(done["mono"] - self.struck_at)

    def _steps_after_loss(self) -> list[Event]:
        (lost,) = self.outcome.of("gang-lost")
        return [event for event in self.outcome.of("step") if event["mono"] > lost["mono"]]


def _lose_gang(runs: GangRuns, lengths: Lengths, number: int) -> LostGang:
    job = lengths.job(number)
    struck_at = 0.0

    def kill_all(scene: Scene) -> None:
        nonlocal struck_at
        scene.wait("step", step=lengths.lost_step)
        ranks = [scene.pid(rank) for rank in range(job.cluster.workers)]
        struck_at = time.monotonic()
        for rank in ranks:
            scene.strike(rank)

    return LostGang(_finished(runs.run(job, disturb=kill_all, prove=True)), struck_at)


def _restore(rank: AskedProcess, lengths: Lengths) -> tuple[list[Answer], list[Answer]]:
    """Restores of the step that was lost, and of the base before it, in turns."""
    rank.ask("restore", step=lengths.lost_step)  # the first one finds a cold process
    pairs = [
        (rank.ask("restore", step=lengths.lost_step), rank.ask("restore", step=lengths.base_step))
        for _ in range(lengths.restores)
    ]
    restored, bases_only = zip(*pairs, strict=True)
    return list(restored), list(bases_only)


def _train_again(ranks: Sequence[AskedProcess], lengths: Lengths, file: Path) -> list[Answer]:
    """What it takes from a full save, `rounds` times, as told by rank 0."""
    ask_all(ranks, "train", until=lengths.lost_step - lengths.back_steps)
    ranks[0].ask("save", file=str(file))
    rounds = [ask_all(ranks, "again", file=str(file), until=lengths.lost_step) for _ in range(lengths.rounds)]
    return [answers[0] for answers in rounds]


def _replayed_step(
    lengths: Lengths, outcome: Outcome, restored: Sequence[Answer], bases_only: Sequence[Answer]
) -> list[Measure]:
    steps = [event for event in outcome.of("step") if _COLD_STEPS < event["step"] < lengths.lost_step]
    training = median(event["seconds"] for event in steps)
    replays = [
        (whole["seconds"] - base["seconds"]) / (whole["records"] - base["records"])
        for whole, base in zip(restored, bases_only, strict=True)
    ]
    replay, name = median(replays), lengths.name
    ranks = outcome.job.cluster.workers
    return [
        plain(f"{name}: a step trained, {ranks} ranks", 1000 * training, "ms"),
        plain(f"{name}: a step replayed", 1000 * replay, "ms"),
        *spread(f"{name}: a step replayed", [1000 * value for value in replays], "ms"),
        at_most(f"{name}: a step replayed, of a step trained", replay / training, REPLAY_LIMIT),
    ]


def _recovery(
    lengths: Lengths, lost_gangs: Sequence[LostGang], trained: Sequence[Answer], restored: Sequence[Answer]
) -> list[Measure]:
    recovery = median(lost.back_after(lengths.lost_step) for lost in lost_gangs)
    again = median(answer["seconds"] for answer in trained)
    faster = f"{lengths.name}, dead gang: recovered from base and log, times faster"
    dead, save = f"{lengths.name}, dead gang", f"{lengths.name}, full save of {lengths.back_steps} steps ago"
    return [
        *(
            plain(f"{dead}: from the kill until {name}", median(lost.moments[name] for lost in lost_gangs), "s")
            for name in lost_gangs[0].moments
        ),
        plain(f"{dead}: from the kill until the lost step is done", recovery, "s"),
        plain(f"{dead}: restoring, {restored[0]['records']} steps", median(a["seconds"] for a in restored), "s"),
        plain(f"{save}: load", median(answer["load_seconds"] for answer in trained), "s"),
        plain(f"{save}: load and train again", again, "s"),
        at_least(faster, again / recovery, RECOVERY_LIMIT)
        if lengths.back_steps == RECOVERY_BACK_STEPS
        else plain(faster, again / recovery),
    ]
