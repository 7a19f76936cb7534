"""Buffers: what a model keeps beside its parameters, such as running statistics.

Every shard's forward starts from the step's first buffers, and the buffers after the step are those of
shard 0; a record carries the ones that changed. Non-persistent buffers count too where replay is
concerned: the next forward reads them, whether or not `state_dict()` shows them.

A buffer may change its values but not its shape or dtype, and none may come or go between steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from openclaw_tasks.errors import RunError
from openclaw_tasks.exact.layout import name_order
from openclaw_tasks.exact.record import BufferChange, BufferShape, byte_view
from openclaw_tasks.exact.tensor_bytes import StoredTensor, byte_array, dtype_name, stored_of, tensor_of


def _persistent_names(model: nn.Module) -> set[str]:
    names: set[str] = set()
    for prefix, module in model.named_modules(remove_duplicate=False):
        kept = module._buffers.keys() - module._non_persistent_buffers_set
        names.update(f"{prefix}.{name}" if prefix else name for name in kept)
    return names


def buffers_of(model: nn.Module, *, persistent_only: bool = False) -> dict[str, Tensor]:
    """The live buffers, each once, in name order.

    Of tied names the smallest persistent one stands for all, else the smallest.
    """
    persistent = _persistent_names(model)
    named = sorted(
        model.named_buffers(remove_duplicate=False),
        key=lambda item: (item[0] not in persistent, name_order(item[0])),
    )
    first: dict[int, tuple[str, Tensor]] = {}
    for name, buffer in named:
        first.setdefault(id(buffer), (name, buffer))
    chosen = (item for item in first.values() if not persistent_only or item[0] in persistent)
    return dict(sorted(chosen, key=lambda item: name_order(item[0])))


def buffer_shapes(model: nn.Module) -> list[BufferShape]:
    """What `max_record_bytes` needs to know of the model's buffers."""
    return [
        BufferShape(name, dtype_name(b.dtype), tuple(b.shape), b.numel() * b.element_size())
        for name, b in buffers_of(model).items()
    ]


def copy_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all buffers, taken at a step's start for `restore_buffers` and `changed_buffers`."""
    return {name: buffer.detach().clone() for name, buffer in buffers_of(model).items()}


def restore_buffers(model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Put copies of `copy_buffers` back. Raises RunError when the model's buffers are others by now."""
    live = buffers_of(model)
    _same_names(live, saved)
    for name, buffer in live.items():
        _same_kind(name, buffer, stored_of(saved[name]))
    with torch.no_grad():
        for name, buffer in live.items():
            buffer.copy_(saved[name])


def changed_buffers(before: Mapping[str, Tensor], model: nn.Module) -> tuple[BufferChange, ...]:
    """The buffers whose bits differ from `before`, in name order, as copies for a record.

    Raises RunError when a buffer came, went, or changed its shape or dtype.
    """
    live = buffers_of(model)
    _same_names(live, before)
    changes: list[BufferChange] = []
    for name, buffer in live.items():
        old, new = stored_of(before[name]), stored_of(buffer)
        _same_kind(name, buffer, old)
        if not np.array_equal(byte_array(old.data), byte_array(new.data)):
            changes.append(BufferChange(name, new.dtype, new.shape, bytes(new.data)))
    return tuple(changes)


def check_changes(model: nn.Module, changes: Iterable[BufferChange]) -> list[tuple[Tensor, Tensor]]:
    """(live buffer, stored value) of each change; nothing is touched yet, and the values are views.

    Raises RunError for a buffer that the model has not, or has with another shape or dtype.
    """
    live = buffers_of(model)
    pairs: list[tuple[Tensor, Tensor]] = []
    for change in changes:
        if change.name not in live:
            raise RunError(f"a record changes buffer {change.name!r}, which the model does not have")
        stored = StoredTensor(change.dtype, change.shape, byte_view(change.data))
        _same_kind(change.name, live[change.name], stored)
        pairs.append((live[change.name], tensor_of(stored)))
    return pairs


def _same_names(live: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    if live.keys() != saved.keys():
        names = sorted(live.keys() ^ saved.keys())
        raise RunError(f"buffers came or went within a step: {', '.join(names)}; register them in __init__")


def _same_kind(name: str, live: Tensor, stored: StoredTensor) -> None:
    dtype, shape, size = dtype_name(live.dtype), tuple(live.shape), live.numel() * live.element_size()
    if (dtype, shape, size) != (stored.dtype, stored.shape, stored.data.nbytes):
        raise RunError(
            f"buffer {name!r} is {dtype} {list(shape)} in the model "
            f"and {stored.dtype} {list(stored.shape)} elsewhere; a buffer keeps its dtype and shape"
        )
