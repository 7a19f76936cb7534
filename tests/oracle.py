"""What an undisturbed run of a job must give, from one plain loop: no ranks, no mesh, no storage.

Every other way of running the job is compared with this, bit for bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.exact.apply import apply
from openclaw_tasks.exact.canonical import canonical_sum, fold_scalars
from openclaw_tasks.exact.record import Record, union_presence
from openclaw_tasks.training.build import Training, build_training
from openclaw_tasks.training.compute import ShardResult


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One step. `loss` is summed over `items`; `lr` has one value for each of the optimizer's groups.

    Two are equal when their records' bits are, so that a NaN loss equals itself.
    """

    step: int
    applied: int
    samples: tuple[tuple[int, int], ...]
    loss: float = field(compare=False)
    items: int
    lr: tuple[float, ...]
    record_digest: str
    weights_digest: str
    state_digest: str
    full_bytes: int


def run_undisturbed(job: TrainJob) -> list[StepFacts]:
    """The facts of every step of the job."""
    training = build_training(job)
    return [take_step(training)[1] for _ in range(job.steps)]


def undisturbed_records(job: TrainJob) -> Iterator[bytes]:
    """Every step's record, in order."""
    training = build_training(job)
    for _ in range(job.steps):
        yield take_step(training)[0]


def take_step(training: Training) -> tuple[bytes, StepFacts]:
    """Compute the next step, apply it, and give its record and facts."""
    step = training.state.step + 1
    shards = range(training.source.logical_shards)
    record = record_of(training, step, [training.computer.compute(step, shard) for shard in shards])
    data = record.to_bytes()
    apply(training.state, Record.parse(data))
    return data, facts_of(training, data)


def facts_of(training: Training, data: bytes) -> StepFacts:
    """What there is to say of the step just applied, whose record is `data`."""
    state, record = training.state, Record.parse(data)
    assert record.step == state.step
    shards = range(training.source.logical_shards)
    weights_digest, state_digest = state.digests()
    return StepFacts(
        step=state.step,
        applied=state.applied,
        samples=tuple(place for shard in shards for place in training.source.positions(state.step, shard)),
        loss=record.loss,
        items=record.items,
        lr=tuple(float(group["lr"]) for group in state.optimizer.param_groups),
        record_digest=hashlib.sha256(data).hexdigest(),
        weights_digest=weights_digest,
        state_digest=state_digest,
        full_bytes=state.size_bytes(),
    )


def record_of(training: Training, step: int, results: list[ShardResult]) -> Record:
    """The step's record from the results of all shards, in order. Uses up their gradients."""
    codec, numel = training.state.codec, training.state.layout.numel
    summed = canonical_sum({(i, 1): result.gradient for i, result in enumerate(results)}, len(results))
    payload = np.empty(codec.encoded_bytes(numel), dtype=np.uint8)
    codec.encode(summed, payload)
    decoded = torch.empty(numel)
    codec.decode(payload, decoded)
    items = sum(result.items for result in results)
    applies = items > 0 and bool(torch.isfinite(decoded).all())
    return Record(
        step=step,
        decision="apply" if applies else "skip",
        items=items,
        loss=fold_scalars([result.loss for result in results]),
        present=union_presence([result.present_bits for result in results]),
        buffers=results[0].changed_buffers if applies else (),
        codec=codec.name,
        payload=payload if applies else b"",
        scaler=None,
    )
