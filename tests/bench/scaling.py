"""`scaling`: what a step costs beside the user's own work, by the number of parameters and of ranks; and memory.

*Record* is one rank's making of a record from its summed slice and taking it in: the look for what is not finite,
encode, the ring, decode. *Exchange* is reduce-scatter and all-gather over the mesh, from the moment when all ranks are
there; the slowest rank's counts. *Commit* is an agent's: seal the records of a group, pack, stripe, put on 5 targets
of which any 2 may be lost, look at the fence; groups hold what fills 16 MB, as in a run, and at least one record.

Ranks are processes that step the product's `StepRunner` (bf16, fused AdamW) over a model whose own work is little. All
are on one host, whose memory and processors all that they send passes through: n ranks send (n - 1) times as much
together as 2, when each one's shards are one subtree (of 8 shards, those of 3 or 6 ranks are not all), so times are
compared by the byte.

*Memory* is the peak of any rank and any agent of a whole gang that trains, cuts bases and stores, over that of a gang
with a model of a thousand parameters, in multiples of the parameters' bytes. What a rank holds:

    1     parameters                           1     its shards' gradients as autograd leaves them
    2     moments of AdamW                     1     their sum, one for each level of the tree over its own shards
    1     the decoded gradient                 0.5   the encoded one (bf16), gathered from all ranks
    0.5   the other rank's part of its slice (of n ranks (n - 1)/n)

A base is handed to the agent by its bytes, from the live tensors into shared memory. An agent packs and stripes one
object of a base after the other; the largest are the moments, 2: packed about 1.8, and striped 5/3 of that, 3. Beside
it a group's records are put: packed and striped 0.85 * 8/3 of 0.5 for each record in it. Shared are the ring, as many
records as the job allows, and the 3 of a base's copy.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench import scaling_memory
from bench.measures import Measure, at_most, median, must_be, plain
from bench.scaling_plan import FLOAT32_BYTES, sent_bytes
from bench.scaling_putter import put_groups
from bench.scaling_rank import Step, gang_of, take_steps
from bench.scaling_recipe import LAYER_PARAMETERS
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.gang.ledger import GROUP_BYTES
from openclaw_tasks.gang.placing import WarmAgents

CLIFF = 1.5
"""Times what a parameter costs at the size or number of ranks that others are compared with."""
REDUNDANCY, TARGETS = 2, 5
RING_RECORDS = 4  # of the gangs whose memory is looked at
BF16_BYTES = 2
PARTS_OF_MEMORY = {
    "a rank's parameters and moments": 3.0,
    "a rank's gradients and their sum": 2.0,
    "a rank's decoded gradient": 1.0,
    "a rank's encoded one, and what its peer sends": 1.0,
    "an agent's packed moments": 1.8,
    "an agent's stripes of these": 3.0,
}
"""As told above: what is to be seen, if no more is held than is needed."""
_RANK_BYTES = 300e6  # beside its parameters: Python, torch
_RANK_MULTIPLES, _GANG_MULTIPLES = 8, 36  # more than they take, of the parameters' bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured. Sizes are layers of a million parameters each."""

    sizes: Sequence[int]
    reference: int  # the size that others are compared with
    ranks: Mapping[int, Sequence[int]]  # at each number of ranks, of which sizes; 2 are what others are compared with
    steps: int  # of a size like the reference; of smaller ones more, which take as long
    groups: int
    memory: Sequence[int]


WHOLE = Plan(
    sizes=(1, 10, 30, 96),
    reference=10,
    ranks={2: (1, 10), 3: (1, 10), 4: (1, 10), 6: (10,), 8: (1, 10)},
    steps=11,
    groups=7,
    memory=(1, 10, 30, 96),
)
SHORT = Plan(sizes=(1, 2), reference=2, ranks={2: (1,), 3: (1,)}, steps=5, groups=3, memory=(1,))


def run(short: bool) -> list[Measure]:
    plan = SHORT if short else WHOLE
    costs = _step_costs(plan)
    with tempfile.TemporaryDirectory() as folder:
        commits = {size: _commit_cost(size, plan.groups, Path(folder)) for size in plan.sizes if _fits(size, 4)}
        memory = _memory(plan.memory, Path(folder))
    return [
        *_by_size("record", {size: costs[2, size].record for size in plan.sizes if (2, size) in costs}, plan.reference),
        *_by_size("exchange", {s: costs[2, s].exchange for s in plan.sizes if (2, s) in costs}, plan.reference),
        *_by_size("commit", {size: cost.seconds for size, cost in commits.items()}, plan.reference),
        *(_missing(size) for size in plan.sizes if (2, size) not in costs),
        *_by_ranks(plan, costs),
        *(plain(f"putter, {_name(s)}: own memory", c.memory, "times its records") for s, c in commits.items()),
        *memory,
        *(plain(f"of these, {part}", times, "times the parameters") for part, times in PARTS_OF_MEMORY.items()),
    ]


# A rank's step


@dataclass(frozen=True, slots=True)
class StepCost:
    """Median seconds a step; bytes that the rank that sends most sends, that all send together, and whether each
    rank's are the formula's."""

    record: float
    exchange: float
    sent_bytes: int
    all_bytes: int
    is_as_promised: bool


def _step_costs(plan: Plan) -> dict[tuple[int, int], StepCost]:
    """By ranks and size. Sizes that do not fit into this machine's memory are left out."""
    found = {}
    for ranks in sorted({2, *plan.ranks}):
        sizes = sorted({*plan.ranks.get(ranks, ()), *(plan.sizes if ranks == 2 else ())})
        with gang_of(ranks) as gang:
            for size in sizes:
                if _fits(size, ranks * _RANK_MULTIPLES, ranks * _RANK_BYTES):
                    job = _job(f"scaling-{ranks}-{size}", size, ranks)
                    found[ranks, size] = _step_cost(job, take_steps(gang, job, warm=2, count=_steps(plan, size)))
    return found


def _steps(plan: Plan, size: int) -> int:
    return max(5, min(4 * plan.steps, plan.steps * plan.reference // size))


def _step_cost(job: TrainJob, told: Sequence[Sequence[Step]]) -> StepCost:
    def record(step: Step) -> float:
        return sum(step.seconds[part] for part in ("gather", "ring", "decode"))

    ranks = len(told)
    numel = job.recipe_args["layers"] * LAYER_PARAMETERS
    promised = [sent_bytes(numel, job.logical_shards, ranks, rank, BF16_BYTES) for rank in range(ranks)]
    sent = [[step.sent_bytes - step.other_bytes for step in steps] for steps in told]
    return StepCost(
        record=median(record(step) for steps in told for step in steps),
        exchange=median(max(step.seconds["exchange"] for step in at_once) for at_once in zip(*told, strict=True)),
        sent_bytes=max(max(of_rank) for of_rank in sent),
        all_bytes=sum(promised),
        is_as_promised=all(set(of_rank) == {wanted} for of_rank, wanted in zip(sent, promised, strict=True)),
    )


def _by_size(part: str, seconds: Mapping[int, float], reference: int) -> list[Measure]:
    """Milliseconds a million parameters, and these over those of the reference size."""
    measures = []
    for size, of_step in seconds.items():
        where = "an agent" if part == "commit" else "2 ranks"
        measures.append(plain(f"{part}, {_name(size)}, {where}", 1000 * of_step / _millions(size), "ms a million"))
    for size, of_step in seconds.items():
        if size != reference and reference in seconds:
            ratio = of_step / _millions(size) / (seconds[reference] / _millions(reference))
            measures.append(
                at_most(f"{part}, {_name(size)}: a parameter, over {_name(reference)}", ratio, CLIFF, "times")
            )
    return measures


def _by_ranks(plan: Plan, costs: Mapping[tuple[int, int], StepCost]) -> list[Measure]:
    """Bytes against the formula, and the time of all bytes together against that of 2 ranks."""
    measures = []
    for ranks, sizes in plan.ranks.items():
        for size in sizes:
            if (ranks, size) not in costs:
                continue
            cost, name = costs[ranks, size], f"{ranks} ranks, {_name(size)}"
            measures += [
                plain(f"{name}: a rank sends at most", cost.sent_bytes, "bytes a step"),
                must_be(f"{name}: as the formula says, each rank", cost.is_as_promised, True),
                plain(f"{name}: record", 1000 * cost.record, "ms"),
                plain(f"{name}: exchange", 1000 * cost.exchange, "ms"),
            ]
            if ranks > 2 and (2, size) in costs:
                two = costs[2, size]
                ratio = cost.exchange / cost.all_bytes / (two.exchange / two.all_bytes)
                measures.append(at_most(f"{name}: a byte's exchange, over 2 ranks", ratio, CLIFF, "times"))
    return measures


# An agent's commit


@dataclass(frozen=True, slots=True)
class CommitCost:
    """Median seconds a record, and the putter's memory beside the records, over their bytes."""

    seconds: float
    memory: float


def _commit_cost(size: int, groups: int, folder: Path) -> CommitCost:
    numel = size * LAYER_PARAMETERS
    records = max(1, min(8, round(GROUP_BYTES / (numel * BF16_BYTES))))
    places = [folder / f"commit-{size}" / f"t{index}" for index in range(TARGETS)]
    put = put_groups("scaling", [place.as_uri() for place in places], REDUNDANCY, numel, records, groups)
    shutil.rmtree(folder / f"commit-{size}")
    group_bytes = records * put.record_bytes
    return CommitCost(median(put.seconds) / records, (put.peak_bytes - put.idle_bytes) / group_bytes)


# The memory of a gang


def _memory(sizes: Sequence[int], folder: Path) -> list[Measure]:
    measures = []
    with WarmAgents(folder / "agents") as agents:

        def peaks(job: TrainJob) -> Mapping[str, scaling_memory.Memory]:
            found = scaling_memory.peaks(job, agents)
            for target in job.store.targets:
                shutil.rmtree(target.removeprefix("file://"))
            return found

        # Twice: the first gang of an agent finds nothing imported.
        nothing = [peaks(_training_job(f"nothing-{number}", 1, features=32)) for number in range(2)][1]
        for size in sizes:
            if not _fits(size, _GANG_MULTIPLES):
                measures.append(_missing(size))
                continue
            measures += _multiples(size, peaks(_training_job(f"memory-{size}", size)), nothing)
    return measures


def _multiples(
    size: int, found: Mapping[str, scaling_memory.Memory], nothing: Mapping[str, scaling_memory.Memory]
) -> list[Measure]:
    measures = []
    times: Callable[[int], float] = lambda size_bytes: size_bytes / (size * LAYER_PARAMETERS * FLOAT32_BYTES)  # noqa: E731
    for kind in ("rank", "agent"):
        most, least = found[kind], nothing[kind]
        unit = "times the parameters"
        measures += [
            plain(f"{kind}, {_name(size)}: own memory", times(most.own - least.own), unit),
            plain(f"{kind}, {_name(size)}: shared memory", times(most.shared - least.shared), unit),
        ]
    return measures


def _training_job(run: str, layers: int, features: int | None = None) -> TrainJob:
    """Two segments on two ranks, with a ring of few records: else its size is what the job allows."""
    numel = layers * (features * features if features else LAYER_PARAMETERS)
    limits = {"max_unprotected_bytes": RING_RECORDS * (numel * BF16_BYTES + 100_000)}
    more = {"segment_steps": 4, "steps": 8, "fault_tolerance": limits, "recipe_args": {"layers": layers}}
    if features:
        more["recipe_args"] = {"layers": layers, "features": features}
    return _job(run, layers, 2, **more)


def _job(run: str, layers: int, ranks: int, **more: object) -> TrainJob:
    document = {
        "run": run,
        "recipe": "bench.scaling_recipe:Wide",
        "recipe_args": {"layers": layers},
        "folder": str(Path(__file__).parents[1]),
        "steps": 1000,
        "global_batch": 8,
        "logical_shards": 2 if ranks == 2 else 8,
        "cluster": {"workers": ranks},
    }
    return TrainJob.parse({**document, **more})


def _fits(size: int, multiples: float, more_bytes: float = 0.0) -> bool:
    """Whether that many times the parameters' bytes are free, with a fifth to spare."""
    needed = multiples * size * LAYER_PARAMETERS * FLOAT32_BYTES + more_bytes
    return 1.2 * needed < psutil.virtual_memory().available


def _missing(size: int) -> Measure:
    return plain(f"{_name(size)}: not measured, too little memory is free", None)


def _millions(size: int) -> float:
    return size * LAYER_PARAMETERS / 1e6


def _name(size: int) -> str:
    return f"{_millions(size):.0f} M"
