"""`replay`: rebuilding a state from its log, beside training it again. The demo's model on the demo's ranks.

*A step replayed* is what a step adds to `restore_state`: reading its stripes, checking digests, unpacking, `apply`.
The time of a restore that replays nothing is taken off the time of one that replays as many steps as lie between two
bases. *A step trained* is the step's time on as many ranks as the job has, which store nothing.

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
_COLD_STEPS = 2  # a rank's first ones, in which memory is touched for the first time
_STEPS_A_ROUND = 3  # that are trained where no full save is gone back to


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long, and how often. The run's last two bases are of its last step and of a segment before it."""

    name: str
    model: Mapping[str, int]  # what differs from the demo's
    steps: int
    segment_steps: int
    rounds: int
    restores: int  # a round
    lost_gangs: int = 0
    back_steps: int = 0  # from a full save to the step that was lost

    @property
    def lost_step(self) -> int:
        """The last step known to be done when the gang is killed."""
        return self.steps - 1

    @property
    def save_step(self) -> int:
        return self.lost_step - self.back_steps if self.back_steps else _COLD_STEPS

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
    Lengths("demo", {}, steps=80, segment_steps=20, rounds=3, restores=3, lost_gangs=3, back_steps=RECOVERY_BACK_STEPS),
    Lengths("10 M", {"width": 384, "layers": 6}, steps=20, segment_steps=10, rounds=3, restores=2),
)
SHORT = (Lengths("demo", {}, steps=12, segment_steps=4, rounds=1, restores=3, lost_gangs=1, back_steps=6),)


def run(short: bool) -> list[Measure]:
    measures: list[Measure] = []
    with tempfile.TemporaryDirectory() as folder, WarmAgents(Path(folder) / "logs") as agents:
        runs = GangRuns(agents, Path(folder), random.Random(1))
        for lengths in SHORT if short else WHOLE:
            measures += _of_model(lengths, runs)
    return measures


def _of_model(lengths: Lengths, runs: GangRuns) -> list[Measure]:
    lost_gangs = [_lose_gang(runs, lengths, number) for number in range(lengths.lost_gangs)]
    outcome = lost_gangs[0].outcome if lost_gangs else _finished(runs.run(lengths.job(0), prove=True))
    rounds = _Rounds(lengths, runs.folder / "full.pt")
    with gang(outcome.job) as ranks:
        rounds.prepare(ranks)
        for number in range(lengths.rounds):
            rounds.take(ranks, number)
    measures = _replayed_step(lengths, rounds)
    if lost_gangs:
        measures += _recovery(lengths, lost_gangs, rounds)
    assert outcome.report is not None
    is_reported = rounds.last_digest == outcome.report.state_digest
    states = {answer["digest"] for answer in (*rounds.restored, *rounds.trained) if "digest" in answer}
    return [
        *measures,
        must_be(f"{lengths.name}: the last step restored is what its ranks reported", is_reported, True),
        must_be(f"{lengths.name}: different states that all ways to the lost step lead to", len(states), 1),
    ]


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
        for step in range(1, lengths.lost_step + 1):  # each is waited for in bounded time
            scene.wait("step", step=step)
        ranks = [scene.pid(rank) for rank in range(job.cluster.workers)]
        struck_at = time.monotonic()
        for rank in ranks:
            scene.strike(rank)

    return LostGang(_finished(runs.run(job, disturb=kill_all, prove=True)), struck_at)


class _Rounds:
    """Restoring and training, in turns: what disturbs the one disturbs the other."""

    def __init__(self, lengths: Lengths, full_save: Path) -> None:
        self._lengths = lengths
        self._full_save = str(full_save)
        self.restored: list[Answer] = []
        self.bases_only: list[Answer] = []
        self.trained: list[Answer] = []
        self.last_digest = ""

    def prepare(self, ranks: Sequence[AskedProcess]) -> None:
        """What comes first finds cold processes. Make the full save."""
        self.last_digest = ranks[0].ask("restore", step=self._lengths.steps)["digest"]
        ranks[0].ask("restore", step=self._lengths.lost_step)
        ask_all(ranks, "train", until=self._lengths.save_step)
        ranks[0].ask("save", file=self._full_save)

    def take(self, ranks: Sequence[AskedProcess], number: int) -> None:
        """Restores of the step that was lost and of the base before it, then training."""
        for _ in range(self._lengths.restores):
            self.restored.append(ranks[0].ask("restore", step=self._lengths.lost_step))
            self.bases_only.append(ranks[0].ask("restore", step=self._lengths.base_step))
        if self._lengths.back_steps:
            answers = ask_all(ranks, "again", file=self._full_save, until=self._lengths.lost_step)
        else:
            until = self._lengths.save_step + (number + 1) * _STEPS_A_ROUND
            answers = ask_all(ranks, "train", until=until)
        self.trained.append(answers[0])


def _replayed_step(lengths: Lengths, rounds: _Rounds) -> list[Measure]:
    training = median(seconds for answer in rounds.trained for seconds in answer["step_seconds"])
    replays = [
        (whole["seconds"] - base["seconds"]) / (whole["records"] - base["records"])
        for whole, base in zip(rounds.restored, rounds.bases_only, strict=True)
    ]
    replay, name = median(replays), lengths.name
    return [
        plain(f"{name}: a step trained", 1000 * training, "ms"),
        plain(f"{name}: a step replayed", 1000 * replay, "ms"),
        *spread(f"{name}: a step replayed", [1000 * value for value in replays], "ms"),
        at_most(f"{name}: a step replayed, of a step trained", replay / training, REPLAY_LIMIT),
    ]


def _recovery(lengths: Lengths, lost_gangs: Sequence[LostGang], rounds: _Rounds) -> list[Measure]:
    recovery = median(lost.back_after(lengths.lost_step) for lost in lost_gangs)
    records, restoring = rounds.restored[0]["records"], median(answer["seconds"] for answer in rounds.restored)
    again = median(answer["seconds"] for answer in rounds.trained)
    faster = f"{lengths.name}, dead gang: recovered from base and log, times faster"
    dead, save = f"{lengths.name}, dead gang", f"{lengths.name}, full save of {lengths.back_steps} steps ago"
    return [
        *(
            plain(f"{dead}: from the kill until {name}", median(lost.moments[name] for lost in lost_gangs), "s")
            for name in lost_gangs[0].moments
        ),
        plain(f"{dead}: from the kill until the lost step is done", recovery, "s"),
        plain(f"{dead}: restoring, {records} steps", restoring, "s"),
        plain(f"{save}: load", median(answer["load_seconds"] for answer in rounds.trained), "s"),
        plain(f"{save}: load and train again", again, "s"),
        at_least(faster, again / recovery, RECOVERY_LIMIT)
        if lengths.back_steps == RECOVERY_BACK_STEPS
        else plain(faster, again / recovery),
    ]
