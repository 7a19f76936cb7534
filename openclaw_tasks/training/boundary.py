"""A segment's end, as one rank reports it: digests of its state, and from one rank a copy of it for a base."""

from __future__ import annotations

import os
from typing import Any

from openclaw_tasks.exact.finite import has_non_finite
from openclaw_tasks.exact.state import TrainState
from openclaw_tasks.training.base_copy import pack_base
from openclaw_tasks.training.control import ControlChannel


def report_boundary(line: ControlChannel, state: TrainState, *, carries_base: bool) -> None:
    """Tell the digests after the step just applied; `carries_base`: and hand the agent a copy of the state.

    The copy is finished before this returns, so the next step cannot reach into it, and it lives in the agent's
    memory from then on, so it outlives this rank.
    """
    # The size is told again: an optimizer makes its state in its first step.
    size = state.size_bytes()
    message: dict[str, Any] = {"type": "boundary", "step": state.step, "applied": state.applied, "full_bytes": size}
    if not carries_base:
        line.send({**message, **_digests(state)})
        return
    message |= _digests(state)
    line.send(message)
    if has_non_finite(state):
        line.send(
            {
                "type": "base-refused",
                "step": state.step,
                "reason": "the state holds values that are not finite",
            }
        )
        return
    fd, parts = pack_base(*state.live_parts())
    try:
        line.send({**message, "type": "base", "parts": parts}, fds=[fd])
    finally:
        os.close(fd)


def _digests(state: TrainState) -> dict[str, str]:
    weights, whole = state.digests()
    return {"weights_digest": weights, "state_digest": whole}
