"""Holding a run and writing to it: claim, heartbeat, groups, bases, retention.

`RunWriter` lives in the flow's process. `put_group` and `put_base` (module level) are what a putter
calls in any process; they need only the targets and a spec.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openclaw_tasks.checkpoint.lineage import BaseRef, BaseSpec, GroupRef, GroupSpec, Lineage

if TYPE_CHECKING:
    from openclaw_tasks.storage.targets import TargetSet

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class GroupResult:
    """An acknowledged group. `stored_bytes` = payload + headers of the k data stripes (CONTRACTS `log_bytes`)."""

    ref: GroupRef
    stored_bytes: int
    acked: int
    degraded: bool


@dataclass(frozen=True, slots=True)
class BaseResult:
    """An acknowledged base; `stored_bytes` counted like a group's."""

    ref: BaseRef
    stored_bytes: int
    acked: int
    degraded: bool


def put_group(targets: TargetSet, spec: GroupSpec, records: Sequence[Buffer]) -> GroupResult:
    """Pack, stripe and put `records` (bytes of steps spec.first..spec.last), then check the fence.

    Raises FencedError, NotDurableError (nothing is acknowledged; repeat as a new attempt).
    """
    raise NotImplementedError


def put_base(
    targets: TargetSet,
    spec: BaseSpec,
    objects: Mapping[str, Buffer],
    plain: Mapping[str, Any],
    digests: Mapping[str, str],
) -> BaseResult:
    """Put a base: every object durable and read back, the fence checked, then the manifest.

    Raises FencedError, NotDurableError.
    """
    raise NotImplementedError


class RunWriter:
    """The right to write one run, from `start` to `release` or until fenced. Thread-safe."""

    run: str
    epoch: int
    writer: str
    warnings: list[str]

    @classmethod
    def start(
        cls,
        targets: TargetSet,
        run: str,
        *,
        identity: Mapping[str, Any],
        job: Mapping[str, Any],
        check_identity: Callable[[Mapping[str, Any]], None] | None = None,
        lease_seconds: float = 10.0,
        wait_seconds: float = 30.0,
        end_step: int | None = None,
        skip: Sequence[int] = (),
        on_fenced: Callable[[], None] | None = None,
    ) -> RunWriter:
        """Claim the run, adopt its history, repair it, and start a heartbeat.

        identity: JSON-able facts fixed for the run's life; `check_identity(previous)` is called with those
        of the last start (if any) before anything is changed, and raises what it likes.
        wait_seconds: how long to wait for unreachable targets that may hold acknowledged groups.
        end_step, skip: a rollback: the history ends after `end_step`, and `skip` are not to be computed.

        Raises RunLiveError, DataLossError, NotDurableError, FencedError.
        """
        raise NotImplementedError

    @property
    def is_new(self) -> bool:
        """True when no history was found: the caller puts base 0."""
        raise NotImplementedError

    @property
    def lineage(self) -> Lineage:
        raise NotImplementedError

    @property
    def durable_step(self) -> int:
        """Last step of the contiguous acknowledged history."""
        raise NotImplementedError

    @property
    def fenced(self) -> threading.Event:
        """Set when a newer epoch was seen."""
        raise NotImplementedError

    def group_spec(self, first: int, last: int, codec: str) -> GroupSpec:
        """Spec of the next group to put; a repeat of an unacknowledged one gets a new attempt.

        Groups go one after the other: ask for the next one only after `record_group` of this one.
        """
        raise NotImplementedError

    def record_group(self, result: GroupResult) -> None:
        """Take an acknowledged group into the lineage (late results of replaced attempts are ignored)."""
        raise NotImplementedError

    def base_spec(self, step: int) -> BaseSpec:
        raise NotImplementedError

    def record_base(self, result: BaseResult) -> None:
        raise NotImplementedError

    def mark_verified(self, step: int, facts: Mapping[str, Any]) -> None:
        """Write the base's `.verified.json`. Raises FencedError, NotDurableError."""
        raise NotImplementedError

    def quarantine_base(self, step: int, reason: str) -> None:
        """Never offer this base again. Raises FencedError, NotDurableError."""
        raise NotImplementedError

    def repair(self) -> int:
        """Put missing or damaged stripes of the history onto reachable targets; number of stripes put."""
        raise NotImplementedError

    def retain(self) -> int:
        """Keep two verified bases and the log back to the older one; number of keys deleted."""
        raise NotImplementedError

    def set_agents(self, agents: Sequence[Mapping[str, Any]]) -> None:
        """Processes ({"pid", "started"}) that flush on their own when this one dies; a takeover waits for them."""
        raise NotImplementedError

    def release(self) -> None:
        """Stop the heartbeat and say in `holder.json` that the run is free. Never raises for a bad target."""
        raise NotImplementedError
