"""Finding values that are infinite or NaN before they are kept (mlfoundations/open_lm#7)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from openclaw_tasks.exact.buffers import buffers_of
from openclaw_tasks.exact.snapshot import Snapshot
from openclaw_tasks.exact.state import TrainState
from openclaw_tasks.exact.tensor_bytes import tensor_of


def all_finite(values: Tensor) -> bool:
    """Whether no element is infinite or NaN, in one pass in the usual case.

    A sum with such an addend is never finite; a sum of finite ones may overflow, so that only then
    each is looked at.
    """
    if not (values.is_floating_point() or values.is_complex()):
        return True
    plain = torch.view_as_real(values) if values.is_complex() else values
    plain = plain.float() if plain.element_size() == 1 else plain
    return math.isfinite(float(plain.sum())) or bool(torch.isfinite(plain).all())


def non_finite_names(state: TrainState | Snapshot) -> list[str]:
    """The parameters and optimizer tensors with an infinite or NaN element, and buffers with NaN.

    Buffers may hold infinities by design: attention masks do.
    """
    if isinstance(state, Snapshot):
        stored = {name: state.tensors(name) for name in ("params", "optimizer", "buffers")}
        parts: dict[str, Mapping[str, Tensor]] = {
            part: {name: tensor_of(tensor) for name, tensor in tensors.items()} for part, tensors in stored.items()
        }
    else:
        parts = {**state.learned_tensors(), "buffers": buffers_of(state.model)}
    with torch.no_grad():
        found = [n for part in ("params", "optimizer") for n, t in parts[part].items() if not all_finite(t)]
        found += [n for n, t in parts["buffers"].items() if not all_finite(t) and bool(torch.isnan(t).any())]
    return found


def has_non_finite(state: TrainState | Snapshot) -> bool:
    """Whether a snapshot of this state must not be kept."""
    return bool(non_finite_names(state))
