"""A run whose shards several ranks own, played in one process: a gang's arithmetic without its wires."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import oracle
import torch

from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.exact.apply import apply
from openclaw_tasks.exact.canonical import Node, canonical_sum, fold
from openclaw_tasks.exact.record import Record
from openclaw_tasks.training.build import Training, build_training
from openclaw_tasks.training.compute import ShardResult


def owner_runs(cuts: Iterable[int], shards: int) -> list[range]:
    """The contiguous runs between `cuts`; a rank may own nothing."""
    edges = [0, *sorted(cuts), shards]
    return [range(lo, hi) for lo, hi in pairwise(edges)]


def run_split(job: TrainJob, owners_of_steps: Sequence[Sequence[range]]) -> list[oracle.StepFacts]:
    """The facts of each step, step s computed by the owners `owners_of_steps[s - 1]`."""
    training = build_training(job)
    return [take_split_step(training, owners) for owners in owners_of_steps]


def take_split_step(training: Training, owners: Sequence[range]) -> oracle.StepFacts:
    """Each owner computes its run and folds it; each encodes its slice of the sum over all."""
    state, step = training.state, training.state.step + 1
    results: dict[int, ShardResult] = {}
    parts: list[dict[Node, torch.Tensor]] = []
    # Backwards: no order among ranks, and none within one, may matter.
    for run in reversed(owners):
        results.update({shard: training.computer.compute(step, shard) for shard in reversed(run)})
        parts.append(fold({(shard, 1): results[shard].gradient.clone() for shard in run}))
    nodes = {node: tensor for part in parts for node, tensor in part.items()}
    payload = np.empty(state.codec.encoded_bytes(state.layout.numel), dtype=np.uint8)
    for start, stop in state.layout.slices(len(owners)):
        mine = {node: tensor[start:stop].clone() for node, tensor in nodes.items()}
        first, last = state.codec.encoded_bytes(start), state.codec.encoded_bytes(stop)
        state.codec.encode(canonical_sum(mine, training.source.logical_shards), payload[first:last])
    ordered = [results[shard] for shard in sorted(results)]
    record = oracle.record_of(training, step, ordered)
    if record.decision == "apply":
        assert bytes(record.payload) == payload.tobytes()  # type: ignore[arg-type]
    apply(state, Record.parse(record.to_bytes()))
    return oracle.facts_of(training, record.to_bytes())
