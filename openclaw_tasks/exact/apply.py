"""The one function that changes the state: `state' = apply(state, record)`.

Training calls it with the record it has just made; recovery, verification, compaction and time travel
call it with a stored one. Nothing else enters: not the batch, the ranks, the clock, a generator.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from openclaw_tasks.errors import RunError
from openclaw_tasks.exact.buffers import check_changes
from openclaw_tasks.exact.layout import ALIGNMENT
from openclaw_tasks.exact.record import Record, byte_view, unpack_presence
from openclaw_tasks.exact.seeding import seed_update
from openclaw_tasks.exact.state import TrainState


def apply(state: TrainState, record: Record) -> None:
    """Take the step that the record describes.

    A skipped step changes `step` and, where the record has one, the scaler; nothing else. An applied
    one decodes the summed gradient, divides it by the items, clips it by its global norm, updates at
    the learning rate of `applied`, then sets the changed buffers. Parameters without a gradient get
    None, which is not zero: neither decay nor momentum moves them.

    Raises RunError, with nothing touched, for a record of another step, codec, layout or model;
    DamagedError for one that contradicts itself.
    """
    if record.step != state.step + 1:
        raise RunError(f"the record is of step {record.step}, and the state awaits step {state.step + 1}")
    if record.decision == "apply":
        _update(state, record)
        state.applied += 1
    if record.scaler is not None:
        state.scaler = dict(record.scaler)
    state.step = record.step


def _update(state: TrainState, record: Record) -> None:
    expected = state.codec.encoded_bytes(state.layout.numel)
    size = byte_view(record.payload).nbytes
    if record.codec != state.codec.name or size != expected:
        raise RunError(
            f"the record of step {record.step} holds {size} bytes of {record.codec}; "
            f"this model takes {expected} of {state.codec.name}"
        )
    if record.items <= 0:
        raise RunError(f"the record of step {record.step} applies a gradient of {record.items} items")
    present = unpack_presence(record.present, len(state.layout.entries))
    buffers = check_changes(state.model, record.buffers)
    with torch.no_grad():
        state.codec.decode(record.payload, state.gradient)
        scale_gradient(state.gradient, record.items, state.clip_norm)
        state.place_gradients(present)
        state.set_learning_rates()
        seed_update(record.step)
        state.optimizer.step()
        state.drop_gradients()
        for live, value in buffers:
            live.copy_(value)


def scale_gradient(summed: Tensor, items: int, clip_norm: float | None) -> None:
    """Turn a summed gradient into the mean one, no longer than `clip_norm`; in place.

    One division does both: by `items * max(1, norm / clip_norm)`, where norm is the mean gradient's.
    """
    divisor = float(items)
    if clip_norm is not None:
        divisor *= max(1.0, (global_norm(summed) / items + 1e-6) / clip_norm)
    if divisor != 1.0:
        summed.div_(divisor)


def global_norm(flat: Tensor) -> float:
    """The L2 norm of a flat vector of a multiple of `ALIGNMENT` elements.

    Each run of `ALIGNMENT` elements is reduced by one thread, and the rest in float64 by numpy, so
    that the result does not depend on the number of threads.
    """
    runs = torch.linalg.vector_norm(flat.view(-1, ALIGNMENT), dim=1)
    return float(np.sqrt(np.square(runs.to("cpu", torch.float64).numpy()).sum()))
