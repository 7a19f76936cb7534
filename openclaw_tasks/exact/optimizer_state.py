"""An optimizer's state, keyed by parameter *name*, for any optimizer that keeps tensors and plain values.

Torch matches optimizer state by position, so that a reordered model gets each other's moments
(pytorch/pytorch#1489), and keeps the very tensors it is given, so that the next step changes the
stored copy. Here state is found by name, checked whole before anything is touched, and copied.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from openclaw_tasks.errors import DamagedError, RecipeError, RunError
from openclaw_tasks.exact.layout import name_order
from openclaw_tasks.exact.plain import Json, decode_plain, encode_plain, join_path, refuse_other
from openclaw_tasks.exact.tensor_bytes import StoredTensor, dtype_name, tensor_of

_DERIVED = ("params", "param_names")
"""Keys of a group that follow from the model and are not state."""


def refuse_unfit_optimizer(optimizer: Optimizer, names: Mapping[Tensor, str]) -> None:
    """Raises RecipeError for an optimizer whose steps cannot be replayed from summed gradients."""
    kind = type(optimizer).__name__
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise RecipeError(f"{kind} needs a closure that computes the loss again; use one that steps without")
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise RecipeError("SparseAdam takes no dense gradients, and records hold dense ones; use Adam")
    for index, group in enumerate(optimizer.param_groups):
        if any(parameter not in names for parameter in group["params"]):
            raise RecipeError(
                f"{kind}'s group {index} holds a tensor that is no parameter of the model; "
                "build the optimizer from the parameters it is given"
            )


@dataclass(frozen=True, slots=True)
class CapturedOptimizer:
    """`plain` names the tensors by key; `tensors` are the live ones, not copied."""

    plain: dict[str, Json]
    tensors: dict[str, Tensor]


def capture_optimizer(optimizer: Optimizer, names: Mapping[Tensor, str], gradient: Tensor) -> CapturedOptimizer:
    """All of the optimizer's state, in name order.

    Raises RunError for state that cannot be kept exactly, or that is a view of `gradient`, which the
    next step overwrites.
    """
    tensors: dict[str, Tensor] = {}
    gradient_memory = gradient.untyped_storage().data_ptr()

    def keep_tensor(value: object, path: str) -> dict[str, Json]:
        if not isinstance(value, Tensor) or value.layout != torch.strided:
            return refuse_other(value, path)
        if value.untyped_storage().data_ptr() == gradient_memory:
            raise RunError(f"{path} is the gradient itself, which the next step overwrites; keep a clone")
        tensors[path] = value
        return {"tensor": path}

    state: dict[str, Json] = {}
    for parameter, values in optimizer.state.items():
        if parameter not in names:
            raise RunError(f"{type(optimizer).__name__} keeps state for something that is no parameter")
        state[names[parameter]] = encode_plain(values, join_path("state", names[parameter]), keep_tensor)
    groups: list[Json] = []
    for index, group in enumerate(optimizer.param_groups):
        values = {key: value for key, value in group.items() if key not in _DERIVED}
        encoded = encode_plain(values, join_path("groups", index), keep_tensor)
        members: list[Json] = [*sorted((names[p] for p in group["params"]), key=name_order)]
        groups.append({"params": members, "values": encoded})
    kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    return CapturedOptimizer({"type": kind, "groups": groups, "state": state}, tensors)


@dataclass(frozen=True, slots=True)
class PreparedOptimizer:
    """State that fits the optimizer, as copies of its own; `install` cannot fail halfway."""

    state: dict[Tensor, dict[str, Any]]
    groups: list[dict[str, Any]]

    def install(self, optimizer: Optimizer) -> None:
        """Replace all state and all of the groups' values."""
        optimizer.state.clear()
        optimizer.state.update(self.state)
        for group, values in zip(optimizer.param_groups, self.groups, strict=True):
            group.update(values)


def prepare_optimizer(
    optimizer: Optimizer, names: Mapping[Tensor, str], plain: Json, stored: Mapping[str, StoredTensor]
) -> PreparedOptimizer:
    """Copies of the stored state for this optimizer; the optimizer is not touched.

    Raises RunError when the optimizer is another, or groups, keys or tensors are missing, extra,
    retyped or reshaped; DamagedError when `plain` is not what `capture_optimizer` wrote.
    """
    try:
        return _Preparation(optimizer, names, stored).run(plain)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DamagedError(f"stored optimizer state cannot be read: {error!r}") from error


class _Preparation:
    def __init__(self, optimizer: Optimizer, names: Mapping[Tensor, str], stored: Mapping[str, StoredTensor]) -> None:
        self._optimizer = optimizer
        self._names = names
        self._stored = stored
        self._unused = set(stored)
        # Where torch keeps the count of steps: Optimizer.load_state_dict decides in the same way.
        self._counts_on_device: set[Tensor] = set()

    def run(self, plain: Any) -> PreparedOptimizer:
        kind = f"{type(self._optimizer).__module__}.{type(self._optimizer).__qualname__}"
        if plain["type"] != kind:
            raise RunError(f"the stored state is of {plain['type']}, and the recipe's optimizer is a {kind}")
        live = self._optimizer.param_groups
        if len(plain["groups"]) != len(live):
            raise RunError(f"{len(plain['groups'])} parameter groups are stored, the optimizer has {len(live)}")
        groups = [self._group(i, group, live[i]) for i, group in enumerate(plain["groups"])]
        parameters = {self._names[p]: p for group in live for p in group["params"]}
        _same_keys("optimizer state of parameters", set(plain["state"]) - set(parameters), set())
        state = {
            parameters[name]: self._state(name, values, parameters[name]) for name, values in plain["state"].items()
        }
        _same_keys("optimizer tensors", self._unused, set())
        return PreparedOptimizer(state, groups)

    def _group(self, index: int, stored: Any, live: dict[str, Any]) -> dict[str, Any]:
        members = {self._names[parameter] for parameter in live["params"]}
        _same_keys(f"parameters of the optimizer's group {index}", set(stored["params"]), members)
        values: Any = decode_plain(stored["values"], lambda tag, key: self._tensor(tag, key, None))
        _same_keys(f"settings of the optimizer's group {index}", set(values), set(live) - set(_DERIVED))
        for key, value in values.items():
            _same_kind(f"setting {key!r} of the optimizer's group {index}", value, live[key])
        if values.get("capturable") or values.get("fused"):
            self._counts_on_device.update(live["params"])
        return dict(values)

    def _state(self, name: str, stored: Json, parameter: Tensor) -> dict[str, Any]:
        values: Any = decode_plain(stored, lambda tag, key: self._tensor(tag, key, parameter))
        live = self._optimizer.state.get(parameter, {})
        for key in values.keys() & live.keys():
            _same_kind(f"{key!r} in the optimizer state of {name!r}", values[key], live[key])
        return dict(values)

    def _tensor(self, tag: str, key: Json, parameter: Tensor | None) -> Tensor:
        if tag != "tensor" or not isinstance(key, str):
            raise DamagedError(f"stored optimizer state has the unknown tag {tag!r}")
        if key not in self._unused:
            raise RunError(f"optimizer tensor {key!r} is named in the stored state but is missing, or twice")
        self._unused.remove(key)
        source = tensor_of(self._stored[key])
        if parameter is None:
            return source.clone()
        if key.endswith("/step") and parameter not in self._counts_on_device:
            return source.clone()
        if source.shape == parameter.shape:
            # The parameter's own strides, which fused kernels rely on.
            return torch.empty_like(parameter, dtype=source.dtype, requires_grad=False).copy_(source)
        return source.to(parameter.device, copy=True)


def _same_keys(what: str, stored: set[str], live: set[str]) -> None:
    if stored != live:
        extra, missing = sorted(stored - live), sorted(live - stored)
        raise RunError(f"{what} differ: stored only {extra}, in the recipe only {missing}")


def _same_kind(what: str, stored: object, live: object) -> None:
    """A tensor stays a tensor of its dtype and shape; a number may become None, a bool and so on."""
    kinds = [
        f"{dtype_name(value.dtype)} {list(value.shape)}" if isinstance(value, Tensor) else "plain"
        for value in (stored, live)
    ]
    if kinds[0] != kinds[1]:
        raise RunError(f"{what} is stored as {kinds[0]} and is {kinds[1]} in the recipe")
