"""Snapshots are copies, and restoring one gives back every bit and type."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import torch
from exact_models import TinyNet, make_model, make_state, random_record, train_step, trained
from safetensors.torch import load
from torch import nn
from torch.optim import SGD, AdamW

from openclaw_tasks.errors import RecipeError, RunError
from openclaw_tasks.exact.apply import apply
from openclaw_tasks.exact.snapshot import Snapshot


def test_later_steps_do_not_change_a_snapshot() -> None:
    """pytorch/pytorch#144657: an async save held weights of step 1 with the Adam step of 2."""
    state = trained(1)
    snapshot = state.snapshot()
    bytes_then = {name: bytes(data) for name, data in snapshot.objects.items()}
    digests_then = state.digests()
    train_step(state)
    assert {name: bytes(data) for name, data in snapshot.objects.items()} == bytes_then
    assert snapshot.digests() == digests_then
    steps = {v.item() for k, v in load(bytes(snapshot.objects["optimizer"])).items() if k.endswith("/step")}
    assert steps == {1.0}


def test_steps_after_restore_do_not_change_the_snapshot_restored_from() -> None:
    snapshot = trained(2).snapshot()
    bytes_then = {name: bytes(data) for name, data in snapshot.objects.items()}
    state = make_state(make_model(9))
    state.restore(snapshot)
    train_step(state)
    assert {name: bytes(data) for name, data in snapshot.objects.items()} == bytes_then


def test_a_fresh_state_restored_goes_on_bit_for_bit() -> None:
    state = trained(3)
    snapshot = state.snapshot()
    other = make_state(make_model(9))
    other.restore(snapshot)
    assert other.digests() == state.digests()
    assert (other.step, other.applied) == (3, 3)
    for _ in range(3):
        train_step(state)
        train_step(other)
    assert other.digests() == state.digests()


def test_restoring_an_earlier_snapshot_forgets_later_optimizer_state() -> None:
    state = make_state()
    start, digests = state.snapshot(), state.digests()
    train_step(state)
    state.restore(start)
    assert not state.optimizer.state
    assert state.digests() == digests


def test_snapshot_digests_equal_the_live_ones() -> None:
    state = trained()
    snapshot = state.snapshot()
    assert snapshot.digests() == state.digests()
    assert (snapshot.weights_digest(), snapshot.state_digest()) == state.digests()
    assert state.weights_digest() == state.digests()[0]


def test_a_snapshot_survives_files_and_json() -> None:
    state = trained()
    snapshot = state.snapshot()
    carried = Snapshot(
        snapshot.step,
        snapshot.applied,
        {name: bytes(data) for name, data in snapshot.objects.items()},
        json.loads(json.dumps(snapshot.plain)),
    )
    assert carried.plain == snapshot.plain
    assert carried.digests() == state.digests()
    other = make_state(make_model(9))
    other.restore(carried)
    assert other.digests() == state.digests()


def test_objects_are_read_by_the_safetensors_library() -> None:
    state = trained()
    params = load(bytes(state.snapshot().objects["params"]))
    assert params.keys() == dict(state.model.named_parameters()).keys()
    for name, parameter in state.model.named_parameters():
        assert torch.equal(params[name], parameter)


def test_tied_weights_stay_one_tensor_with_one_state() -> None:
    """huggingface/accelerate#1204: tied weights come apart on load, or are written twice."""
    snapshot = trained().snapshot()
    state = make_state(make_model(9))
    state.restore(snapshot)
    model = state.model
    assert isinstance(model, TinyNet)
    assert model.head.weight is model.embed.weight
    assert "head.weight" not in snapshot.tensors("params")
    assert sum("exp_avg/" in f"{key}/" for key in snapshot.tensors("optimizer")) == len(state.layout.entries)
    train_step(state)
    assert torch.equal(model.head.weight, model.embed.weight)


class TwoLayers(nn.Module):
    def __init__(self, names: tuple[str, str]) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(6, 6))


def test_layers_defined_in_another_order_keep_their_own_moments() -> None:
    """pytorch/pytorch#1489: optimizer state matched by position goes to the wrong parameter."""
    state = make_state(TwoLayers(("first", "second")))
    for step in range(2):
        apply(state, random_record(state, step))
    other = make_state(TwoLayers(("second", "first")))
    other.restore(state.snapshot())
    assert other.digests() == state.digests()
    for one in (state, other):
        apply(one, random_record(one, 7))
    assert other.digests() == state.digests()


class Keeper(SGD):
    """SGD whose groups and state hold every type that must come back as it was."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1, momentum=0.9)
        for group in self.param_groups:
            group.update(betas=(0.9, 0.99), flag=True, nothing=None, by_epoch={3: 1, 1: [0.5, (1,)]}, nan=float("nan"))

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].update(seen=self.state[parameter].get("seen", 0) + 1, history=[(1, 0.1)])
        return loss


def same(a: object, b: object) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor)
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        assert isinstance(b, dict)
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    if isinstance(a, list | tuple):
        assert isinstance(b, list | tuple)
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b or a != a


def test_plain_optimizer_values_keep_their_types() -> None:
    """pytorch/pytorch#140900: lr kept the new default, initial_lr dropped, int keys came back as text."""
    state = make_state(TwoLayers(("a", "b")), Keeper)
    state.scaler = {"scale": 8.0, "counts": {2: 3}}
    apply(state, random_record(state, 0))
    other = make_state(TwoLayers(("a", "b")), Keeper)
    for group in other.optimizer.param_groups:
        group.update(lr=55.0, initial_lr=44.0, betas=(0.0, 0.0))
    other.restore(state.snapshot())
    for one, two in zip(state.optimizer.param_groups, other.optimizer.param_groups, strict=True):
        assert same({**one, "params": 0}, {**two, "params": 0})
    for one, two in zip(state.model.parameters(), other.model.parameters(), strict=True):
        assert same(state.optimizer.state[one], other.optimizer.state[two])
    assert same(other.scaler, state.scaler)


@pytest.mark.parametrize("value", [Counter([1]), {1, 2}, torch.Generator(), object(), 1j])
def test_an_unknown_type_of_optimizer_state_is_refused_at_the_start(value: object) -> None:
    """pytorch/pytorch#140900: refused at save, not at load."""

    def make(parameters: Any) -> SGD:
        optimizer = SGD(parameters, lr=0.1)
        optimizer.param_groups[0]["odd"] = {"inner": [value]}
        return optimizer

    with pytest.raises(RecipeError, match="groups/0/odd/inner/0 is a"):
        make_state(make_optimizer=make)


def test_an_unknown_type_that_appears_later_is_refused_by_the_snapshot() -> None:
    state = trained(1)
    parameter = state.optimizer.param_groups[0]["params"][0]
    state.optimizer.state[parameter]["odd"] = {1, 2}
    with pytest.raises(RunError, match=r"state/embed\.weight/odd is a builtins\.set"):
        state.snapshot()


def test_state_that_is_the_gradient_itself_is_refused() -> None:
    state = trained(1)
    parameter = state.optimizer.param_groups[0]["params"][0]
    state.optimizer.state[parameter]["last"] = state.gradient[:3]
    with pytest.raises(RunError, match="is the gradient itself"):
        state.snapshot()


def test_a_learning_rate_that_is_a_tensor_is_state_like_any() -> None:
    def make(parameters: Any) -> AdamW:
        return AdamW(parameters, lr=torch.tensor(0.02), fused=True)

    state, other = make_state(make_optimizer=make), make_state(make_model(9), make)
    for _ in range(2):
        train_step(state)
    assert state.optimizer.param_groups[0]["lr"].item() == pytest.approx(0.01)
    other.restore(state.snapshot())
    train_step(state)
    train_step(other)
    assert other.digests() == state.digests()
