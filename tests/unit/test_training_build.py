"""Building a job's parts: the same bits in every process, and every mistake of a recipe in one line."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import zoo
from torch import nn

from openclaw_tasks.errors import OpenClawError, RecipeError
from openclaw_tasks.training.build import build_state, build_training


def broken(method: str, result: Any) -> type[zoo.Tiny]:
    """A recipe whose `method` returns `result`, or raises it."""

    def replacement(*_: Any) -> Any:
        if isinstance(result, Exception):
            raise result
        return result() if callable(result) else result

    return type("Broken", (zoo.Tiny,), {"__module__": __name__, method: replacement})


def refusal(monkeypatch: pytest.MonkeyPatch, recipe: type[zoo.Tiny]) -> RecipeError:
    monkeypatch.setattr(zoo, "Broken", recipe, raising=False)
    with pytest.raises(RecipeError) as caught:
        build_training(zoo.job("Broken"))
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("method", ["model", "dataset", "optimizer", "schedule"])
def test_exception_of_a_method_is_one_line_with_itself_as_the_cause(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake = KeyError("no such\nthing")
    error = refusal(monkeypatch, broken(method, mistake))
    assert f"Broken.{method}() raised KeyError" in str(error)
    assert error.__cause__ is mistake


def test_refusal_of_our_own_passes_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    own = RecipeError("no file matches")
    assert refusal(monkeypatch, broken("dataset", own)) is own


@pytest.mark.parametrize(
    ("method", "result", "said"),
    [
        ("model", "a model", "model() returned str; return a torch.nn.Module"),
        ("model", nn.ReLU, "no parameter to train"),
        ("model", lambda: nn.LazyLinear(3), "no shape yet"),
        ("optimizer", None, "optimizer() returned NoneType; return a torch.optim.Optimizer"),
        ("schedule", float("nan"), "schedule(0) returned nan; return a finite number"),
        ("schedule", "1", "schedule(0) returned '1'"),
        ("dataset", [], "without a sample"),
        ("dataset", [object()], "fingerprint() -> str"),
    ],
)
def test_what_a_method_returns_is_checked(method: str, result: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said in str(refusal(monkeypatch, broken(method, result)))


def test_optimizer_that_needs_a_closure_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closure(zoo.Tiny):
        def optimizer(self, params: Any) -> Any:
            return torch.optim.LBFGS(params)

    assert "LBFGS" in str(refusal(monkeypatch, Closure))


def test_frozen_parameters_are_not_given_to_the_optimizer_and_tied_ones_once() -> None:
    training = build_training(zoo.job("Everything"))
    names = [entry.name for entry in training.state.layout.entries]
    given = [p for group in training.state.optimizer.param_groups for p in group["params"]]
    assert len(given) == len(names)
    assert [training.state.model.get_parameter(name) is p for name, p in zip(names, given, strict=True)]
    assert not [name for name in names if name.startswith(("frozen", "mix_again"))]


def test_initial_state_is_the_same_whatever_the_process_did_before() -> None:
    first = build_training(zoo.job("Everything"))
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    second = build_training(zoo.job("Everything"))
    assert second.state.digests() == first.state.digests()
    assert second.fingerprints == first.fingerprints
    assert build_training(zoo.job("Everything", seed=8)).state.digests() != first.state.digests()


def test_state_alone_needs_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "Broken", broken("dataset", OSError("gone")), raising=False)
    recipe, state = build_state(zoo.job("Broken"))
    assert isinstance(recipe, zoo.Tiny)
    assert state.digests() == build_state(zoo.job("Tiny"))[1].digests()


def test_fingerprints_tell_recipe_data_and_arithmetic() -> None:
    fingerprints = build_training(zoo.job("Tiny")).fingerprints
    other = build_training(zoo.job("Tiny", recipe_args={"samples": 20})).fingerprints
    assert set(fingerprints) == {"recipe", "data", "arithmetic"}
    assert {key for key in fingerprints if fingerprints[key] != other[key]} == {"data"}
    assert torch.__version__ in fingerprints["arithmetic"]


def test_errors_of_building_are_for_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    assert issubclass(RecipeError, OpenClawError)
    assert refusal(monkeypatch, broken("model", None)).exit_status == 2
