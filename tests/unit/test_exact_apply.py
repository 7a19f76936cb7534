"""`apply` is the only way forward, and gives the same bits live and replayed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from exact_models import TinyNet, make_model, make_record, make_state, random_record, train_step
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from openclaw_tasks.errors import DamagedError, RunError
from openclaw_tasks.exact.apply import apply, global_norm, scale_gradient
from openclaw_tasks.exact.canonical import canonical_sum
from openclaw_tasks.exact.record import BufferChange, Record
from openclaw_tasks.exact.state import TrainState

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "fused AdamW": lambda ps: AdamW(ps, lr=0.01, fused=True),
    "foreach AdamW, amsgrad": lambda ps: AdamW(ps, lr=0.01, foreach=True, amsgrad=True),
    "plain Adam": lambda ps: Adam(ps, lr=0.01, foreach=False),
    "SGD, nesterov": lambda ps: SGD(ps, lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.1),
    "fused SGD": lambda ps: SGD(ps, lr=0.01, momentum=0.9, fused=True),
    "Adafactor": lambda ps: torch.optim.Adafactor(ps, lr=0.01),
    "RMSprop": lambda ps: torch.optim.RMSprop(ps, lr=0.01, momentum=0.5, centered=True),
    "NAdam": lambda ps: torch.optim.NAdam(ps, lr=0.01),
    "RAdam": lambda ps: torch.optim.RAdam(ps, lr=0.01),
    "Adamax": lambda ps: torch.optim.Adamax(ps, lr=0.01),
    "Adagrad": lambda ps: torch.optim.Adagrad(ps, lr=0.01),
    "Adadelta": lambda ps: torch.optim.Adadelta(ps, lr=0.01),
    "ASGD": lambda ps: torch.optim.ASGD(ps, lr=0.01),
    "Rprop": lambda ps: torch.optim.Rprop(ps, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_replay_from_a_snapshot_is_bit_identical_for(name: str) -> None:
    """Live steps, then the same records on a state restored from the middle, read back from bytes."""
    live = make_state(make_optimizer=OPTIMIZERS[name])
    snapshot = live.snapshot()
    stored: list[bytes] = []
    digests: list[tuple[str, str]] = []
    for step in range(1, 7):
        stored.append(train_step(live).to_bytes())
        digests.append(live.digests())
        if step == 2:
            snapshot = live.snapshot()
    replayed = make_state(make_model(9), OPTIMIZERS[name])
    replayed.restore(snapshot)
    for data, expected in zip(stored[2:], digests[2:], strict=True):
        apply(replayed, Record.parse(data))
        assert replayed.digests() == expected


@pytest.mark.parametrize("codec", ["bf16", "exact", "int8"])
def test_replay_is_bit_identical_whatever_the_codec(codec: str) -> None:
    live, replayed = make_state(codec=codec), make_state(codec=codec)
    for _ in range(3):
        apply(replayed, Record.parse(train_step(live).to_bytes()))
    assert replayed.digests() == live.digests()


class NoisySGD(SGD):
    """Adds noise from every global generator."""

    def step(self, closure: Any = None) -> Any:
        import random

        import numpy as np

        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    noise = torch.randn_like(parameter) + random.random() + np.random.rand()
                    parameter.grad += noise
        return super().step(closure)


def test_an_optimizer_that_draws_random_numbers_replays_too() -> None:
    one, other = (make_state(make_optimizer=lambda ps: NoisySGD(ps, lr=0.01)) for _ in range(2))
    torch.manual_seed(1)
    apply(one, random_record(one, 3))
    torch.manual_seed(2)
    apply(other, random_record(other, 3))
    assert one.digests() == other.digests()


class TwoParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.ones(5))
        self.used = nn.Parameter(torch.ones(5))


@pytest.mark.parametrize("name", ["fused AdamW", "foreach AdamW, amsgrad", "SGD, nesterov", "fused SGD"])
def test_no_gradient_is_not_a_zero_gradient(name: str) -> None:
    """pytorch/pytorch#28294: an unused parameter got zeros, so that decay and momentum moved it."""

    def run(*masks: bytes) -> TrainState:
        state = make_state(TwoParts(), OPTIMIZERS[name])
        for mask in masks:
            gradient = torch.zeros(state.layout.numel)
            gradient[5:10] = 1.0
            if mask == b"\3":
                gradient[:5] = 1.0
            apply(state, Record.parse(make_record(state, gradient, mask).to_bytes()))
        return state

    never, first_only = run(b"\2", b"\2"), run(b"\3", b"\2")
    unused = never.model.get_parameter("unused")
    assert unused.tolist() == [1.0] * 5
    assert unused not in never.optimizer.state
    after_one = run(b"\3").model.get_parameter("unused")
    assert torch.equal(first_only.model.get_parameter("unused"), after_one)
    assert torch.equal(never.model.get_parameter("used"), run(b"\2", b"\2").model.get_parameter("used"))


def test_a_zero_gradient_that_is_present_does_move_a_parameter() -> None:
    state = make_state(TwoParts())
    gradient = torch.zeros(state.layout.numel)
    apply(state, make_record(state, gradient, b"\3"))
    assert (state.model.get_parameter("unused") < 1).all()


def test_a_branch_used_in_odd_steps_only_trains_and_replays() -> None:
    """pytorch/pytorch#22049: a parameter not used in the loss fails at the second iteration."""
    state = make_state()
    model = state.model
    assert isinstance(model, TinyNet)
    train_step(state)
    after_odd = model.side.weight.detach().clone()
    train_step(state)
    assert torch.equal(model.side.weight, after_odd)
    train_step(state)
    assert not torch.equal(model.side.weight, after_odd)


def test_shards_of_unequal_items_weigh_by_their_items() -> None:
    """pytorch/torchtitan#2206: a mean of per-rank means weighs short ranks too much."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(8, 4), torch.randn(8, 1)

    def gradient_of(state: TrainState, rows: slice) -> torch.Tensor:
        flat = torch.zeros(state.layout.numel)
        (state.model(inputs[rows]) - targets[rows]).square().sum().backward()
        assert state.collect_gradients(flat) == b"\3"
        return flat

    def linear() -> TrainState:
        torch.manual_seed(1)
        return make_state(nn.Linear(4, 1), lambda ps: SGD(ps, lr=0.1), codec="exact", clip_norm=None)

    two, one = linear(), linear()
    total = canonical_sum({(0, 1): gradient_of(two, slice(3)), (1, 1): gradient_of(two, slice(3, 8))}, 2)
    apply(two, make_record(two, total, b"\3", items=8))
    whole = (one.model(inputs) - targets).square().mean()
    whole.backward()
    one.optimizer.step()
    for mine, theirs in zip(two.model.parameters(), one.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)


def test_a_skipped_step_counts_but_changes_nothing() -> None:
    """Lightning-AI/pytorch-lightning#18828: the schedule moved on though the update was skipped."""
    state = make_state()
    train_step(state)
    weights, lr = state.weights_digest(), state.optimizer.param_groups[0]["lr"]
    skip = Record(2, "skip", 24, math.nan, b"", (), "bf16", b"", {"scale": 4.0})
    apply(state, Record.parse(skip.to_bytes()))
    assert (state.step, state.applied) == (2, 1)
    assert state.scaler == {"scale": 4.0}
    assert state.weights_digest() == weights
    assert state.optimizer.param_groups[0]["lr"] == lr
    train_step(state)
    assert state.scaler == {"scale": 4.0}
    assert state.optimizer.param_groups[0]["lr"] == 0.01 * 0.5


def test_the_learning_rate_is_a_function_of_applied_updates() -> None:
    """huggingface/accelerate#662, THUDM/slime#1546: the schedule counted something else, or twice."""
    state = make_state(make_optimizer=lambda ps: SGD(ps, lr=3.0), schedule=lambda applied: 0.5**applied)
    seen = []
    for _ in range(4):
        apply(state, random_record(state, 1))
        seen.append(state.optimizer.param_groups[0]["lr"])
    assert seen == [3.0, 1.5, 0.75, 0.375]
    other = make_state(make_model(9), lambda ps: SGD(ps, lr=3.0), schedule=lambda applied: 0.5**applied)
    other.restore(state.snapshot())
    apply(other, random_record(other, 1))
    assert other.optimizer.param_groups[0]["lr"] == 0.1875


def test_groups_keep_their_own_base_learning_rates() -> None:
    def make(parameters: Any) -> SGD:
        first, *others = parameters
        return SGD([{"params": [first], "lr": 1.0}, {"params": others}], lr=2.0)

    state = make_state(make_optimizer=make, schedule=lambda applied: 0.5)
    apply(state, random_record(state, 0))
    assert [group["lr"] for group in state.optimizer.param_groups] == [0.5, 1.0]


def test_buffers_follow_the_record_after_the_update() -> None:
    state = make_state()
    change = BufferChange("calls", "I64", (), (5).to_bytes(8, "little"))
    apply(state, Record.parse(random_record(state, 0, buffers=(change,)).to_bytes()))
    assert state.model.get_buffer("calls").item() == 5


def test_gradients_are_gone_after_the_update() -> None:
    """So that the next backward adds to nothing."""
    state = make_state()
    apply(state, random_record(state, 0))
    assert all(parameter.grad is None for parameter in state.model.parameters())


def refused_records(state: TrainState) -> dict[str, Record]:
    good = random_record(state, 0)
    fields = {name: getattr(good, name) for name in Record.__slots__}

    def other(**changes: Any) -> Record:
        return Record(**{**fields, **changes})

    return {
        "an earlier step": other(step=0),
        "a later step": other(step=2),
        "another codec": other(codec="exact"),
        "a short payload": other(payload=bytes(good.payload)[:-2]),
        "no items": other(items=0),
        "another mask": other(present=b"\xff" * 9),
        "an unknown buffer": other(buffers=(BufferChange("nobody", "F32", (), bytes(4)),)),
        "a reshaped buffer": other(buffers=(BufferChange("mask", "F32", (9,), bytes(36)),)),
        "a short buffer": other(buffers=(BufferChange("mask", "F32", (3, 3), bytes(35)),)),
    }


@pytest.mark.parametrize("name", refused_records(make_state()))
def test_a_record_that_does_not_fit_is_refused_with_the_state_untouched(name: str) -> None:
    state = make_state()
    before = state.digests()
    with pytest.raises(DamagedError if name == "another mask" else RunError):
        apply(state, refused_records(state)[name])
    assert state.digests() == before


@pytest.mark.parametrize("name", ["fused AdamW", "foreach AdamW, amsgrad"])
def test_parameters_of_other_dtypes_and_strides_are_updated_right(name: str) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.wide = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))
            self.narrow = nn.Parameter(torch.randn(4, 4, dtype=torch.bfloat16))
            self.image = nn.Parameter(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))
            self.turned = nn.Parameter(torch.randn(6, 3).T)

    state = make_state(Mixed(), OPTIMIZERS[name], codec="exact", clip_norm=None)
    reference = Mixed()
    optimizer = OPTIMIZERS[name](reference.parameters())
    optimizer.param_groups[0]["lr"] = 0.01
    for seed in range(2):
        record = random_record(state, seed, items=1)
        flat = torch.frombuffer(bytearray(record.payload), dtype=torch.float32)
        for entry, view in zip(state.layout.entries, state.layout.views(flat), strict=True):
            parameter = reference.get_parameter(entry.name)
            parameter.grad = torch.empty_like(parameter).copy_(view)
        optimizer.param_groups[0]["lr"] = 0.01 / (1 + seed)
        optimizer.step()
        apply(state, record)
    for entry in state.layout.entries:
        assert torch.equal(state.model.get_parameter(entry.name), reference.get_parameter(entry.name))
    other = make_state(Mixed(), OPTIMIZERS[name], codec="exact", clip_norm=None)
    other.restore(state.snapshot())
    for one in (state, other):
        apply(one, random_record(one, 7))
    assert other.digests() == state.digests()
    image = other.model.get_parameter("image")
    assert other.optimizer.state[image]["exp_avg"].stride() == image.stride()


def test_sparse_gradients_are_collected_dense() -> None:
    state = make_state(nn.Embedding(5, 3, sparse=True), lambda ps: SGD(ps, lr=1.0), clip_norm=None)
    flat = torch.full((state.layout.numel,), 7.0)
    state.model(torch.tensor([1, 1, 4])).sum().backward()
    assert state.collect_gradients(flat) == b"\1"
    assert flat[:15].view(5, 3)[:, 0].tolist() == [0, 2, 0, 0, 1]


def test_absent_gradients_are_collected_as_zeros() -> None:
    state = make_state(TwoParts())
    flat = torch.full((state.layout.numel,), 7.0)
    state.model.get_parameter("used").sum().backward()
    assert state.collect_gradients(flat) == b"\2"
    assert flat[:10].tolist() == [0.0] * 5 + [1.0] * 5
    assert state.model.get_parameter("used").grad is None


def test_clipping_bounds_the_norm_of_the_mean_gradient() -> None:
    summed = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    clipped, loose, unclipped = summed.clone(), summed.clone(), summed.clone()
    scale_gradient(clipped, 8, 1.0)
    assert global_norm(clipped) == pytest.approx(1.0, rel=1e-5)
    torch.testing.assert_close(clipped / clipped.norm(), summed / summed.norm())
    scale_gradient(loose, 8, 1e3)
    scale_gradient(unclipped, 8, None)
    assert torch.equal(loose, summed / 8)
    assert torch.equal(unclipped, summed / 8)


def test_the_norm_does_not_depend_on_threads_and_is_exact() -> None:
    flat = torch.randn(1024 * 1024, generator=torch.Generator().manual_seed(0))
    threads = torch.get_num_threads()
    norms = set()
    try:
        for count in (1, 2, 3, 8):
            torch.set_num_threads(count)
            norms.add(global_norm(flat))
    finally:
        torch.set_num_threads(threads)
    assert len(norms) == 1
    assert norms.pop() == pytest.approx(flat.double().norm().item(), rel=1e-7)


def test_no_real_record_of_a_state_exceeds_its_bound() -> None:
    state = make_state()
    bound = state.max_record_bytes()
    for _ in range(3):
        assert len(train_step(state).to_bytes()) <= bound


def test_an_unread_only_memory_record_applies_without_a_warning() -> None:
    """Torch warns about read-only memory, and warnings are errors here."""
    one, other = make_state(), make_state()
    data = random_record(one, 0).to_bytes()
    apply(one, Record.parse(data))
    apply(other, Record.parse(bytearray(data)))
    assert one.digests() == other.digests()
