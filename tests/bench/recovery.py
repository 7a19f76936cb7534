"""How soon training goes on after a rank is killed, an agent is killed, a rank freezes; and where the time goes."""

from __future__ import annotations

import itertools
import math
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.measures import Measure, at_most, median, must_be, plain, spread
from openclaw_tasks.config.faults import parse_faults
from openclaw_tasks.config.home import forget_run
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.gang.placing import WarmAgents
from openclaw_tasks.gang.plain_run import train_plainly
from openclaw_tasks.observe.events import Event, read_events
from openclaw_tasks.recipes.recipe import load_recipe

RANKS = 2
AT_WORK_SECONDS = 10.0
SEED = 17
STRETCHES = (
    ("detect", None, "detected_seconds"),
    ("decide", "detected_seconds", "announced_seconds"),
    ("mesh", "announced_seconds", "meshed_seconds"),
    ("catch up", "meshed_seconds", "recovered_seconds"),
    ("first step", "recovered_seconds", "stepped_seconds"),
)
"""What a recovery consists of, each from one of its moments to the next; the first from the kill."""


@dataclass(frozen=True, slots=True)
class Size:
    """A model, and what its runs are to suffer."""

    name: str
    recipe_args: Mapping[str, int]
    pairs: int  # runs in which rank 1 is killed, and rank 0 once the replacement trains
    gap: int  # steps between these two
    agents: int  # runs in which an agent is killed
    freezes: int  # runs in which a rank is stopped
    seen_seconds: float = AT_WORK_SECONDS  # how long at least a run goes on without an agent
    settled: int = 5  # the first step that something is struck in

    @property
    def steps(self) -> int:
        """Of a run in which ranks are struck."""
        return self.settled + self.gap + 4


DEMO = Size("demo's model", {}, pairs=5, gap=8, agents=3, freezes=3)
SIZES = (DEMO, Size("10 million", {"width": 320, "layers": 8, "heads": 8}, pairs=5, gap=4, agents=3, freezes=2))
SHORT = (Size("demo's model", {}, pairs=1, gap=6, agents=1, freezes=1, seen_seconds=4.0),)


def run(short: bool) -> list[Measure]:
    """Runs of the demo's job, on agents that are up before the first."""
    measures: list[Measure] = []
    with WarmAgents(Path(os.environ["OPENCLAW_HOME"]) / "agents") as agents:
        for size in SHORT if short else SIZES:
            measures += _measure(Trials(size, agents))
    return measures


@dataclass(frozen=True, slots=True)
class Trial:
    """What a run has told of itself."""

    events: Sequence[Event]

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["kind"] == kind]

    def recoveries(self) -> list[Event]:
        """Those that were got over while there were steps to do."""
        return [event for event in self.of("recovery") if event["recovered_seconds"] is not None]

    def step_seconds(self, before: int) -> list[float]:
        """How long the first steps took, those before `before`."""
        return [event["seconds"] for event in self.of("step") if event["step"] < before]

    def at_work_seconds(self) -> list[float]:
        """For each fault: from the kill until a step was done with the replacement; none if that never came."""
        struck = [event["struck_at"] for event in self.of("fault")]
        joined = [event["mono"] for event in self.of("generation") if event["cause"] == "join"]
        done = [event["mono"] for event in self.of("step") if event["ranks"] == RANKS]
        found: list[float] = []
        for kill, until in zip(struck, [*struck[1:], math.inf], strict=True):
            since = min((moment for moment in joined if kill < moment < until), default=math.inf)
            found += [moment - kill for moment in done if since < moment < until][:1]
        return found


class Trials:
    """Runs of one model; each disturbed one is compared with the undisturbed one of as many steps."""

    def __init__(self, size: Size, agents: WarmAgents) -> None:
        self.size = size
        self.rng = random.Random(SEED)
        self.equal: list[bool] = []
        self._agents = agents
        self._digests: dict[int, str | None] = {}
        self._runs = itertools.count(1)

    def job(self, steps: int, run: str = "trial") -> TrainJob:
        changes = {"run": run, "steps": str(steps), "segment_steps": str(min(steps, 20))}
        changes |= {f"recipe_args.{name}": str(value) for name, value in self.size.recipe_args.items()}
        return TrainJob.load("demo", set=changes)

    def undisturbed(self, steps: int) -> Trial:
        """What disturbed runs of so many steps are compared with from now on."""
        self._digests[steps], trial = self._train(steps)
        return trial

    def disturbed(self, steps: int, *faults: str) -> Trial:
        digest, trial = self._train(steps, *faults)
        self.equal.append(digest is not None and digest == self._digests[steps])
        return trial

    def _train(self, steps: int, *faults: str) -> tuple[str | None, Trial]:
        job = self.job(steps, f"trial-{next(self._runs)}")
        report = train_plainly(job, self._agents.placement(RANKS), faults=parse_faults(faults, job), prove=False)
        trial = Trial(read_events(job.run))
        forget_run(job.run)
        return report.weights_digest, trial


def _measure(trials: Trials) -> list[Measure]:
    size = trials.size
    calm = trials.undisturbed(size.steps)
    step_seconds = median(calm.step_seconds(size.steps + 1)[1:])
    model = load_recipe(trials.job(size.steps)).model()
    found = [
        plain("parameters", sum(parameter.numel() for parameter in model.parameters())),
        plain(f"a step of {RANKS} ranks, median", step_seconds, "s"),
    ]
    recoveries: list[Event] = []
    for measures, told in (_killed_ranks(trials), _killed_agents(trials, step_seconds), _frozen_ranks(trials)):
        found += measures
        recoveries += told
    lost = sum(event["steps_lost"] for event in recoveries)
    found += [
        must_be("steps lost, all together", lost, 0),
        must_be("runs that end with the undisturbed weights", sum(trials.equal), len(trials.equal)),
    ]
    return [_named(size.name, measure) for measure in found]


Found = tuple[list[Measure], list[Event]]


def _killed_ranks(trials: Trials) -> Found:
    """Two in a run, the second when the first one's replacement trains; never in the first steps."""
    size = trials.size
    runs = []
    for _ in range(size.pairs):
        first = trials.rng.randrange(size.settled, size.settled + 2)
        runs.append(trials.disturbed(size.steps, f"kill-rank:1@{first}", f"kill-rank:0@{first + size.gap}"))
    told = [event for one in runs for event in one.recoveries()]
    at_work = [seconds for one in runs for seconds in one.at_work_seconds()]
    measures = [
        must_be("rank killed: recoveries", len(told), 2 * size.pairs),
        *_seconds("rank killed: recovered", told, "recovered_seconds", 0.3),
        *_seconds("rank killed: overhead", told, "overhead_seconds", 1.0),
        plain("rank killed: a replacement at work after, median", _median(at_work), "s"),
    ]
    for name, start, end in STRETCHES:
        stretch = [event[end] - (event[start] if start is not None else 0.0) for event in told]
        measures.append(plain(f"rank killed: {name}, median", 1000 * _median(stretch), "ms"))
    return measures, told


def _killed_agents(trials: Trials, step_seconds: float) -> Found:
    """In runs that are long enough to see the replacement at work."""
    size = trials.size
    seconds_alone = RANKS * step_seconds  # of a step, for the one that is left: about
    steps = size.settled + math.ceil(size.seen_seconds / seconds_alone)
    trials.undisturbed(steps)
    runs = [trials.disturbed(steps, f"kill-agent:{number % RANKS}@{size.settled}") for number in range(size.agents)]
    told = [event for one in runs for event in one.recoveries()]
    at_work = [seconds for one in runs for seconds in one.at_work_seconds()]
    return [
        must_be("agent killed: recoveries", len(told), size.agents),
        *_seconds("agent killed: recovered", told, "recovered_seconds", 0.5),
        plain("agent killed: overhead, median", _median(event["overhead_seconds"] for event in told), "s"),
        must_be("agent killed: replacements seen at work", len(at_work), size.agents),
        at_most(
            "agent killed: a replacement at work after, most", max(at_work, default=math.inf), AT_WORK_SECONDS, "s"
        ),
    ], told


def _frozen_ranks(trials: Trials) -> Found:
    """Each is to be found within a bound of its own, which its step times so far give."""
    size = trials.size
    step = size.settled + size.gap
    told: list[Event] = []
    found: list[tuple[float, float]] = []
    for number in range(size.freezes):
        one = trials.disturbed(size.steps, f"stop-rank:{number % RANKS}@{step}")
        taken = one.step_seconds(step)
        bound = max(2.0, 3 * sum(taken) / len(taken))
        told += one.recoveries()
        found += [(event["detected_seconds"], bound) for event in one.recoveries()]
    latest, bound = max(found, key=lambda pair: pair[0] - pair[1], default=(math.inf, 2.0))
    return [
        must_be("rank frozen: recoveries", len(told), size.freezes),
        at_most("rank frozen: found after (most of max(2 s, 3 steps))", latest, bound, "s"),
    ], told


def _seconds(name: str, told: Sequence[Event], key: str, limit: float) -> list[Measure]:
    values = [event[key] for event in told] or [math.nan]
    return [at_most(f"{name}, median", _median(values), limit, "s"), *spread(name, values, "s")]


def _median(values: Iterable[float]) -> float:
    """Not a number, which no limit holds for, where nothing has been seen."""
    return median([*values] or [math.nan])


def _named(name: str, measure: Measure) -> Measure:
    return replace(measure, measure=f"{name}: {measure.measure}")
