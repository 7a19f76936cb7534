"""What does not fit is refused before a bit is touched; what cannot be kept, at the start."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from exact_models import make_state, trained
from safetensors.torch import load
from torch import nn
from torch.optim import SGD

from openclaw_tasks.errors import DamagedError, RecipeError, RunError
from openclaw_tasks.exact.snapshot import Snapshot
from openclaw_tasks.exact.state import TrainState
from openclaw_tasks.exact.tensor_bytes import pack_tensors


def with_object(snapshot: Snapshot, name: str, data: bytes | memoryview) -> Snapshot:
    return replace(snapshot, objects={**snapshot.objects, name: data})


def with_tensors(snapshot: Snapshot, name: str, change: Callable[[dict[str, Any]], object]) -> Snapshot:
    tensors = {key: tensor.clone() for key, tensor in load(bytes(snapshot.objects[name])).items()}
    change(tensors)
    return with_object(snapshot, name, pack_tensors(tensors))


MISFITS: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "a missing parameter": ("params", lambda t: t.pop("inner.bias")),
    "an extra parameter": ("params", lambda t: t.update(extra=torch.zeros(1))),
    "a retyped parameter": ("params", lambda t: t.update({"inner.bias": t["inner.bias"].double()})),
    "a reshaped parameter": ("params", lambda t: t.update({"inner.bias": t["inner.bias"].view(6, 4)})),
    "a missing buffer": ("buffers", lambda t: t.pop("calls")),
    "a retyped buffer": ("buffers", lambda t: t.update(calls=t["calls"].int())),
    "a missing moment": ("optimizer", lambda t: t.pop("state/inner.bias/exp_avg")),
    "an extra moment": ("optimizer", lambda t: t.update({"state/inner.bias/other": torch.zeros(1)})),
    "a reshaped moment": (
        "optimizer",
        lambda t: t.update({"state/inner.bias/exp_avg": t["state/inner.bias/exp_avg"].view(4, 6)}),
    ),
    "a retyped step": (
        "optimizer",
        lambda t: t.update({"state/inner.bias/step": t["state/inner.bias/step"].double()}),
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_what_does_not_fit_is_refused_with_the_state_untouched(misfit: str) -> None:
    name, change = MISFITS[misfit]
    snapshot = with_tensors(trained(3).snapshot(), name, change)
    state = trained(2)
    before = state.digests()
    with pytest.raises(RunError):
        state.restore(snapshot)
    assert state.digests() == before


def optimizer_changes() -> dict[str, Callable[[dict[str, Any]], object]]:
    return {
        "another optimizer": lambda plain: plain["optimizer"].update(type="torch.optim.sgd.SGD"),
        "another number of groups": lambda plain: plain["optimizer"]["groups"].append({}),
        "another member": lambda plain: plain["optimizer"]["groups"][0]["params"].pop(),
        "a missing setting": lambda plain: plain["optimizer"]["groups"][0]["values"]["dict"].pop(),
        "state of nobody": lambda plain: plain["optimizer"]["state"].update(nobody={"dict": []}),
        "other persistent buffers": lambda plain: plain.update(non_persistent=[]),
        "an unknown tag": lambda plain: plain["optimizer"]["state"].update({"inner.bias": {"pickle": "x"}}),
        "no optimizer": lambda plain: plain.pop("optimizer"),
        "another format": lambda plain: plain.update(format=2),
        "a scaler that is a list": lambda plain: plain.update(scaler=[]),
    }


@pytest.mark.parametrize("change", optimizer_changes())
def test_plain_state_that_does_not_fit_is_refused_with_the_state_untouched(change: str) -> None:
    snapshot = trained(3).snapshot()
    optimizer_changes()[change](snapshot.plain)
    state = trained(2)
    before = state.digests()
    with pytest.raises(RunError):
        state.restore(snapshot)
    assert state.digests() == before


class Exploit:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.marker,))


@pytest.mark.parametrize("name", ["params", "buffers", "optimizer"])
def test_a_pickle_in_place_of_an_object_is_refused_and_not_run(name: str, tmp_path: Path) -> None:
    """huggingface/transformers#43140: a checkpoint's side file was unpickled, and its code ran."""
    marker = tmp_path / "marker"
    hostile = pickle.dumps(Exploit(marker))
    snapshot = trained(1).snapshot()
    whole = with_object(snapshot, name, hostile)
    as_header = with_object(snapshot, name, struct.pack("<Q", len(hostile)) + hostile)
    for damaged in (whole, as_header):
        with pytest.raises(DamagedError):
            make_state().restore(damaged)
        with pytest.raises(DamagedError):
            damaged.digests()
    assert not marker.exists()


def test_an_optimizer_that_needs_a_closure_is_refused() -> None:
    with pytest.raises(RecipeError, match="LBFGS needs a closure"):
        make_state(nn.Linear(2, 2), torch.optim.LBFGS)


def test_an_optimizer_that_wants_sparse_gradients_is_refused() -> None:
    with pytest.raises(RecipeError, match="SparseAdam"):
        make_state(nn.Linear(2, 2), torch.optim.SparseAdam)


def test_an_optimizer_over_other_tensors_is_refused() -> None:
    with pytest.raises(RecipeError, match="no parameter of the model"):
        make_state(nn.Linear(2, 2), lambda ps: SGD(nn.Linear(2, 2).parameters(), lr=0.1))


def test_a_module_with_extra_state_is_refused() -> None:
    class Odd(nn.Linear):
        def get_extra_state(self) -> object:
            return 1

    with pytest.raises(RecipeError, match="extra state"):
        make_state(Odd(2, 2))


def test_a_layout_of_another_model_is_refused() -> None:
    state = make_state(nn.Linear(2, 2))
    with pytest.raises(RecipeError, match="layout"):
        TrainState(nn.Linear(3, 3), state.optimizer, state.layout, state.codec, None, lambda applied: 1.0)
