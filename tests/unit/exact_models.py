"""Models, states and steps for the tests of `openclaw_tasks.exact`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from openclaw_tasks.exact.apply import apply
from openclaw_tasks.exact.buffers import changed_buffers, copy_buffers, restore_buffers
from openclaw_tasks.exact.canonical import Node, canonical_sum
from openclaw_tasks.exact.codecs import codec_named
from openclaw_tasks.exact.layout import FlatLayout
from openclaw_tasks.exact.record import Record, union_presence
from openclaw_tasks.exact.seeding import seed_shard
from openclaw_tasks.exact.state import TrainState

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
SHARDS = 4


class TinyNet(nn.Module):
    """Tied and frozen parameters, a branch used in odd steps only, dropout, three kinds of buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 24)
        self.inner = nn.Linear(24, 24)
        self.norm = nn.BatchNorm1d(24)
        self.side = nn.Linear(24, 24)
        self.frozen = nn.Linear(24, 24)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(24, 11)
        self.head.weight = self.embed.weight
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)
        self.mask: Tensor
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))

    def forward(self, tokens: Tensor, use_side: bool) -> Tensor:
        self.calls += 1
        hidden = self.norm(self.inner(self.embed(tokens)))
        if use_side:
            hidden = hidden + self.side(hidden)
        hidden = nn.functional.dropout(self.frozen(torch.relu(hidden)), 0.1, self.training)
        return self.head(hidden)


def fused_adamw(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return AdamW(parameters, lr=0.01, fused=True)


def make_model(seed: int = 0) -> TinyNet:
    torch.manual_seed(seed)
    return TinyNet()


def make_state(
    model: nn.Module | None = None,
    make_optimizer: MakeOptimizer = fused_adamw,
    *,
    codec: str = "bf16",
    clip_norm: float | None = 1.0,
    schedule: Callable[[int], float] = lambda applied: 1.0 / (1 + applied),
) -> TrainState:
    model = make_model() if model is None else model
    optimizer = make_optimizer(model.parameters())
    return TrainState(model, optimizer, FlatLayout.of(model), codec_named(codec), clip_norm, schedule)


def make_record(
    state: TrainState,
    gradient: Tensor,
    present: bytes,
    *,
    items: int = 8,
    step: int | None = None,
    **others: object,
) -> Record:
    payload = np.zeros(state.codec.encoded_bytes(state.layout.numel), dtype=np.uint8)
    state.codec.encode(gradient, payload)
    fields: dict[str, object] = {
        "step": state.step + 1 if step is None else step,
        "decision": "apply",
        "items": items,
        "loss": 1.5,
        "present": present,
        "buffers": (),
        "codec": state.codec.name,
        "payload": payload.data,
        **others,
    }
    return Record(**fields)  # type: ignore[arg-type]


def random_record(state: TrainState, seed: int, *, all_present: bool = True, **others: object) -> Record:
    """A record of the state's next step with a random gradient; the padding is zero."""
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.zeros(state.layout.numel)
    flags = 0
    for index, view in enumerate(state.layout.views(gradient)):
        if all_present or (index + seed) % 3:
            view.copy_(torch.randn(view.shape, generator=generator))
            flags |= 1 << index
    present = flags.to_bytes((len(state.layout.entries) + 7) // 8, "little")
    return make_record(state, gradient, present, **others)


def train_step(state: TrainState, seed: int = 5) -> Record:
    """One real step of a `TinyNet`: four shards, their sum, the record; applies it and returns it."""
    step = state.step + 1
    before = copy_buffers(state.model)
    nodes: dict[Node, Tensor] = {}
    masks: list[bytes] = []
    changes = ()
    for shard in range(SHARDS):
        restore_buffers(state.model, before)
        seed_shard(seed, step, shard)
        tokens = torch.randint(0, 11, (6,))
        logits = state.model(tokens, use_side=step % 2 == 1)
        nn.functional.cross_entropy(logits, tokens, reduction="sum").backward()
        nodes[shard, 1] = torch.zeros(state.layout.numel)
        masks.append(state.collect_gradients(nodes[shard, 1]))
        changes = changed_buffers(before, state.model) if shard == 0 else changes
    restore_buffers(state.model, before)
    total = canonical_sum(nodes, SHARDS)
    record = make_record(state, total, union_presence(masks), items=6 * SHARDS, buffers=changes)
    apply(state, record)
    return record


def trained(steps: int = 3) -> TrainState:
    """A state after real steps."""
    state = make_state()
    for _ in range(steps):
        train_step(state)
    return state
