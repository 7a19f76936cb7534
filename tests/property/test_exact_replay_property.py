"""Killed after any step equals undisturbed, bit for bit, whatever the records hold."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, AdamW

from openclaw_tasks.exact.apply import apply
from openclaw_tasks.exact.codecs import codec_named
from openclaw_tasks.exact.layout import FlatLayout
from openclaw_tasks.exact.record import BufferChange, Record
from openclaw_tasks.exact.state import TrainState


class Small(nn.Module):
    """Three parameters, one of them bfloat16, and a buffer."""

    def __init__(self, order: list[str], start: float) -> None:
        super().__init__()
        kinds = {"a": (3, torch.float32), "b": (40, torch.float32), "c": (7, torch.bfloat16)}
        for name in order:
            size, dtype = kinds[name]
            self.register_parameter(name, nn.Parameter(torch.full((size,), start, dtype=dtype)))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64), persistent=False)


def make(codec: str, momentum: bool, order: list[str], start: float = 1.0) -> TrainState:
    model = Small(order, start)
    optimizer = (
        SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        if momentum
        else AdamW(model.parameters(), lr=0.1)
    )
    return TrainState(model, optimizer, FlatLayout.of(model), codec_named(codec), 0.5, lambda applied: 0.9**applied)


def record_bytes(state: TrainState, step: int, skip: bool, mask: int, seed: int) -> bytes:
    gradient = torch.zeros(state.layout.numel)
    generator = torch.Generator().manual_seed(seed)
    for index, view in enumerate(state.layout.views(gradient)):
        if mask >> index & 1:
            view.copy_(torch.randn(view.shape, generator=generator))
    payload = bytearray(0 if skip else state.codec.encoded_bytes(state.layout.numel))
    if not skip:
        state.codec.encode(gradient, payload)
    buffers = () if skip else (BufferChange("seen", "I64", (), step.to_bytes(8, "little")),)
    return Record(
        step=step,
        decision="skip" if skip else "apply",
        items=1 + seed % 9,
        loss=0.5,
        present=bytes([mask]),
        buffers=buffers,
        codec=state.codec.name,
        payload=payload,
        scaler={"scale": 2.0**step} if skip else None,
    ).to_bytes()


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["bf16", "exact", "int8"]),
    st.booleans(),
    st.lists(st.tuples(st.booleans(), st.integers(0, 7), st.integers(0, 1000)), min_size=1, max_size=6),
    st.permutations(["a", "b", "c"]),
    st.data(),
)
def test_any_snapshot_and_the_records_after_it_give_the_same_bits(
    codec: str,
    momentum: bool,
    steps: list[tuple[bool, int, int]],
    order: list[str],
    data: st.DataObject,
) -> None:
    live = make(codec, momentum, ["a", "b", "c"])
    snapshots, log = [live.snapshot()], []
    for number, (skip, mask, seed) in enumerate(steps, start=1):
        log.append(record_bytes(live, number, skip, mask, seed))
        apply(live, Record.parse(log[-1]))
        snapshots.append(live.snapshot())
    cut = data.draw(st.integers(0, len(steps)))
    replayed = make(codec, momentum, order, start=5.0)
    replayed.restore(snapshots[cut])
    assert replayed.digests() == snapshots[cut].digests()
    for stored in log[cut:]:
        apply(replayed, Record.parse(stored))
    assert replayed.digests() == live.digests() == snapshots[-1].digests()
    assert (replayed.step, replayed.applied) == (len(steps), sum(not skip for skip, _, _ in steps))
