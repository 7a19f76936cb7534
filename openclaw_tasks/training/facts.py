"""What ranks tell each other beside the gradient, and the decision that follows from it.

Facts about the mathematics belong to *shards* and go into the record; facts about the machines belong to *ranks* and
do not. Every rank sees the same list of facts and so takes the same decision.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openclaw_tasks.exact.canonical import fold_scalars
from openclaw_tasks.exact.record import BufferChange, byte_view, union_presence


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """Of one logical shard: summed loss, items it sums over, and which parameters had a gradient (packed bits)."""

    loss: float
    items: int
    present: bytes


@dataclass(frozen=True, slots=True)
class RankFacts:
    shards: Mapping[int, ShardFacts]
    finite: bool  # every element of this rank's summed slice is finite
    heard: int  # the newest boundary formation this rank has heard of
    stop: bool  # this rank was asked to stop
    buffers: tuple[BufferChange, ...] = field(default=())  # from the owner of shard 0: buffers that the step changed


@dataclass(frozen=True, slots=True)
class Decision:
    """What the group does with this step, the same on every rank."""

    apply: bool
    stop: bool
    next_generation: int | None


def encode_facts(facts: RankFacts) -> bytes:
    """JSON length, JSON, then the buffers' bytes."""
    header = {
        "shards": {
            str(shard): [value.loss.hex(), value.items, value.present.hex()] for shard, value in facts.shards.items()
        },
        "finite": facts.finite,
        "heard": facts.heard,
        "stop": facts.stop,
        "buffers": [[b.name, b.dtype, list(b.shape), byte_view(b.data).nbytes] for b in facts.buffers],
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return b"".join([len(text).to_bytes(4, "little"), text, *(byte_view(b.data) for b in facts.buffers)])


def decode_facts(data: bytes | bytearray) -> RankFacts:
    """The inverse of `encode_facts`."""
    end = 4 + int.from_bytes(data[:4], "little")
    header: dict[str, Any] = json.loads(data[4:end])
    buffers = []
    for name, dtype, shape, length in header["buffers"]:
        buffers.append(BufferChange(name, dtype, tuple(shape), bytes(data[end : end + length])))
        end += length
    shards = {
        int(shard): ShardFacts(float.fromhex(loss), items, bytes.fromhex(present))
        for shard, (loss, items, present) in header["shards"].items()
    }
    return RankFacts(shards, header["finite"], header["heard"], header["stop"], tuple(buffers))


def max_facts_bytes(shards: int, parameters: int, buffer_bytes: int, buffers: int) -> int:
    """A bound for what `encode_facts` gives."""
    return 4096 + shards * (128 + parameters // 4 + 2) + buffer_bytes + 1024 * buffers


def decide(facts: Sequence[RankFacts], current_generation: int) -> Decision:
    """Apply only what is finite everywhere; stop, or change to a new formation, only when every rank knows of it."""
    heard = min(fact.heard for fact in facts)
    return Decision(
        apply=all(fact.finite for fact in facts),
        stop=all(fact.stop for fact in facts),
        next_generation=heard if heard > current_generation else None,
    )


@dataclass(frozen=True, slots=True)
class StepFacts:
    """The shards' facts of a whole step, summed."""

    loss: float
    items: int
    present: bytes
    buffers: tuple[BufferChange, ...]


def sum_facts(facts: Sequence[RankFacts]) -> StepFacts:
    """Losses along the canonical tree, items, the OR of the masks, the buffers of shard 0."""
    shards = {shard: value for fact in facts for shard, value in fact.shards.items()}
    ordered = [shards[shard] for shard in range(len(shards))]
    return StepFacts(
        loss=fold_scalars([value.loss for value in ordered]),
        items=sum(value.items for value in ordered),
        present=union_presence([value.present for value in ordered]),
        buffers=next((fact.buffers for fact in facts if fact.buffers), ()),
    )
