"""`overhead`: what a stored step costs, at 2,048 tokens per rank and step, beside torch.save and DCP.

*Making and handing over the record*: one process, a world of one, takes steps in turns: one of the baseline (per-shard
flat buffers, tree sum, clip, apply: the product's own functions, without codec, record, ring, storage), one of the
product's `StepRunner` for each codec. Digests, which agents make, are made by the same thread here, and count. Whole
steps are compared by the processor time of that thread, which never waits: others on the machine disturb it least.

*The whole durable path*: blocks of steps in turns. The baseline's process has a core to itself; so has the rank of a
real gang of one, whose agent, launcher, verifications and supervisor share another core, and whose records and bases
go to 5 targets, of which any 2 may be lost. A block's time is the wall time between its first and its last step, with
the ends of segments between. torch.save of model and optimizer after each step, and DCP's async_save with its thread
free to use both cores, are blocks of the baseline's process.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.measures import Measure, at_most, median, must_be, plain, spread
from bench.overhead_worker import Cores, TrainingProcess
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.gang.placing import WarmAgents
from openclaw_tasks.gang.plain_run import train_plainly
from openclaw_tasks.observe.events import Event, EventLog, read_events

RECORD_LIMITS = {"bf16": 3.0, "exact": 3.0, "int8": 4.0}
PATH_LIMIT = 8.0
PARTS = ("encode", "decode", "ring", "digest")
SAVES = ("torch.save", "DCP")
TOKENS = 2048
SEGMENT_STEPS = 20  # as in the demo
_FIRST_STEP = 2  # before it memory is touched for the first time


@dataclass(frozen=True, slots=True)
class Size:
    """A model to measure with, and how long. A round of the first part takes a step in each loop."""

    name: str
    width: int
    layers: int
    record_rounds: int
    path_rounds: int
    gang_steps: int  # from _FIRST_STEP on
    block_steps: int  # of the baseline and of full saves

    def job(self, run: str) -> TrainJob:
        """A job of one rank, which thus takes all of the step's tokens."""
        context = 128
        changes = {
            "run": run,
            "steps": _FIRST_STEP + self.gang_steps,
            "segment_steps": min(SEGMENT_STEPS, self.gang_steps),
            "global_batch": TOKENS // context,
            "cluster.workers": 1,
            "recipe_args.context": context,
            "recipe_args.width": self.width,
            "recipe_args.layers": self.layers,
        }
        return TrainJob.load("demo", changes)


WHOLE = (
    Size("demo", 128, 4, record_rounds=40, path_rounds=5, gang_steps=40, block_steps=20),
    Size("10 M", 384, 6, record_rounds=10, path_rounds=3, gang_steps=20, block_steps=6),
)
SHORT = (Size("demo", 128, 4, record_rounds=3, path_rounds=1, gang_steps=8, block_steps=4),)


def run(short: bool) -> list[Measure]:
    measures: list[Measure] = []
    with (
        _two_cores() as cores,
        tempfile.TemporaryDirectory() as folder,
        WarmAgents(Path(folder) / "logs") as agents,  # on the core that we are on
    ):
        for size in SHORT if short else WHOLE:
            with TrainingProcess(size.job("baseline"), cores, folder) as baseline:
                measures += record_costs(size, baseline)
                measures += path_costs(size, baseline, agents, cores.training)
    return measures


def record_costs(size: Size, process: TrainingProcess) -> list[Measure]:
    """What encode, decode, ring and digest add to a step."""
    loops = ["plain", *RECORD_LIMITS]
    seconds: dict[str, list[float]] = {loop: [] for loop in loops}
    parts: dict[str, list[Mapping[str, float]]] = {loop: [] for loop in loops}
    for _ in range(_FIRST_STEP):
        for loop in loops:
            process.steps(loop, 1)
    for round_ in range(size.record_rounds):
        turn = round_ % len(loops)  # what comes first in a round finds other things in the caches than what comes last
        for loop in loops[turn:] + loops[:turn]:
            answer = process.steps(loop, 1)
            seconds[loop].append(answer["busy_seconds"])
            parts[loop].append(answer["parts"])
    step = median(seconds["plain"])
    measures = [plain(f"{size.name}: baseline step", 1000 * step, "ms")]
    for codec, limit in RECORD_LIMITS.items():
        name = f"{size.name}, {codec}"
        made = [sum(step_parts.values()) for step_parts in parts[codec]]
        slower = [ours - base for ours, base in zip(seconds[codec], seconds["plain"], strict=True)]
        measures.append(at_most(f"{name}: record made and handed over", 100 * median(made) / step, limit, "% of step"))
        for part in PARTS:
            milliseconds = 1000 * median(step_parts[part] for step_parts in parts[codec])
            measures.append(plain(f"{name}: {part}", milliseconds, "ms"))
        measures.append(
            at_most(f"{name}: step with a record over one without", 100 * median(slower) / step, limit, "%")
        )
    same = process.digest("exact") == process.digest("plain")
    return [*measures, must_be(f"{size.name}: exact codec trains to the baseline's bits", same, True)]


def path_costs(size: Size, process: TrainingProcess, agents: WarmAgents, training_core: int) -> list[Measure]:
    """What the whole durable path, and full saves, add to the wall time of a step."""
    slower: dict[str, list[float]] = {path: [] for path in ("path", *SAVES)}
    agent_seconds, waits = [], 0
    process.steps("plain", 1)
    for loop in SAVES:
        process.steps(loop, 1)

    def block(loop: str) -> float:
        return float(process.steps(loop, size.block_steps)["seconds"]) / size.block_steps

    for round_ in range(size.path_rounds):
        before = block("plain")
        gang = _gang_block(size.job(f"{size.name.replace(' ', '-')}-{round_}"), agents, training_core)
        base = (before + block("plain")) / 2
        slower["path"].append(gang.step_seconds / base - 1)
        agent_seconds.append(gang.agent_seconds)
        waits += gang.waits
        for loop in SAVES:
            slower[loop].append(block(loop) / base - 1)
    return [
        at_most(f"{size.name}: whole durable path", 100 * median(slower["path"]), PATH_LIMIT, "% of wall time"),
        *spread(f"{size.name}: whole durable path", [100 * value for value in slower["path"]], "% of wall time"),
        plain(f"{size.name}: the agent's processor time", 1000 * median(agent_seconds), "ms a step"),
        must_be(f"{size.name}: waits for storage", waits, 0),
        *(plain(f"{size.name}: {loop} at each step", 100 * median(slower[loop]), "% of wall time") for loop in SAVES),
    ]


@dataclass(frozen=True, slots=True)
class GangBlock:
    """A run of the product, of `Size.gang_steps` measured steps."""

    step_seconds: float
    agent_seconds: float  # processor time a step
    waits: int


def _gang_block(job: TrainJob, agents: WarmAgents, training_core: int) -> GangBlock:
    placement = agents.placement(1)
    agent = psutil.Process(placement.pids()[0])
    before = agent.cpu_times()
    log = EventLog(job.run)
    log.listen(lambda event: _place_rank(event, training_core), name="place")
    train_plainly(job, placement, events=log)
    log.close()
    after = agent.cpu_times()
    events = list(read_events(job.run))
    ends = {event["step"]: event["mono"] for event in events if event["kind"] == "step"}
    return GangBlock(
        step_seconds=(ends[job.steps] - ends[_FIRST_STEP]) / (job.steps - _FIRST_STEP),
        agent_seconds=(after.user + after.system - before.user - before.system) / job.steps,
        waits=sum(event["kind"] == "waiting" for event in events),
    )


def _place_rank(event: Event, core: int) -> None:
    if event["kind"] == "rank-started":
        os.sched_setaffinity(event["pid"], {core})


@contextmanager
def _two_cores() -> Iterator[Cores]:
    """One core for training and one for the rest, on which this process is in the body."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        sys.exit("overhead: two cores are needed, one for training and one for the rest; this process may use one")
    os.sched_setaffinity(0, {cores[1]})
    try:
        yield Cores(cores[0], cores[1])
    finally:
        os.sched_setaffinity(0, cores)
