"""Rebuilding a state from a base and the log, and proving bases against it (needs torch)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from openclaw_tasks.checkpoint.lineage import BaseRef

if TYPE_CHECKING:
    from openclaw_tasks.checkpoint.reader import RunReader
    from openclaw_tasks.exact.state import TrainState


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What `rebuild_state` did."""

    step: int
    base: BaseRef
    records_applied: int


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Outcome for one step. "other-arithmetic": this machine computes other bits than the run's, so nothing is said."""

    step: int
    outcome: Literal["verified", "other-arithmetic"]
    weights_digest: str
    state_digest: str
    base: BaseRef


def rebuild_state(reader: RunReader, state: TrainState, step: int | None = None) -> Rebuilt:
    """Restore `state` to `step` (default: the last durable one): newest base at or before it, then its records.

    A base that fails to load is passed over for an older one (`reader.warnings` says so).
    Raises DataLossError, DamagedError naming step and group.
    """
    raise NotImplementedError


def verify_run(
    reader: RunReader, make_state: Callable[[], TrainState], step: int | None = None, *, fewest: bool = True
) -> VerifyResult:
    """Decode a base from the fewest stripes, replay the log to `step`, and compare with the reported digests.

    Raises DigestMismatchError, DataLossError, DamagedError.
    """
    raise NotImplementedError
