"""What the flow's stages can see of the gang, and wait for. Written by the supervisor's thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from openclaw_tasks.errors import GangLostError, OpenClawError


@dataclass(slots=True)
class Facts:
    """The gang as it stands. Copied under the board's lock."""

    agents: tuple[str, ...] = ()
    ranks: int = 0
    step: int = 0  # last applied by rank 0
    applied: int = 0
    durable_step: int = 0
    resumed_step: int = 0
    digests: dict[int, dict[str, Any]] = field(default_factory=dict)  # per boundary: weights, state, applied
    bases: set[int] = field(default_factory=set)
    bases_pending: set[int] = field(default_factory=set)  # a copy is held or being put
    bases_refused: dict[int, str] = field(default_factory=dict)
    full_checkpoint_bytes: int | None = None
    missing_targets: frozenset[int] = frozenset()  # at the start
    is_settled: bool = False  # no final record waits for storage, after a request to flush
    is_running: bool = False
    is_ended: bool = False
    lost_cause: str | None = None
    cancelled: OpenClawError | None = None  # somebody wants the run to end: stages do, ranks are still told to stop
    error: OpenClawError | None = None
    spares: dict[int, dict[str, Any]] = field(default_factory=dict)  # answers by number


class Board:
    """Facts with a condition variable."""

    def __init__(self) -> None:
        self._facts = Facts()
        self._changed = threading.Condition()

    def update(self, change: Callable[[Facts], object]) -> None:
        """Apply `change` and wake whoever waits."""
        with self._changed:
            change(self._facts)
            self._changed.notify_all()

    def read(self, look: Callable[[Facts], Any]) -> Any:
        """What `look` finds, under the lock."""
        with self._changed:
            return look(self._facts)

    def wait(
        self,
        look: Callable[[Facts], Any],
        *,
        timeout_seconds: float | None = None,
        through_loss: bool = False,
        through_error: bool = False,
    ) -> Any:
        """Block until `look` gives something true, and return it; None at the timeout.

        Raises the run's error or the cancel if there is one (unless `through_error`), and GangLostError when no rank
        is left (unless `through_loss`: somebody else starts ranks again).
        Wakes up at least each second, so that a signal or a cancel reaches the waiting thread.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            with self._changed:
                found = look(self._facts)
                if found:
                    return found
                error = self._facts.error or self._facts.cancelled
                if error is not None and not through_error:
                    raise error
                if self._facts.lost_cause is not None and not through_loss:
                    raise GangLostError(f"no rank is left ({self._facts.lost_cause}); last step {self._facts.step}")
                left = 1.0 if deadline is None else min(1.0, deadline - time.monotonic())
                if left <= 0:
                    return None
                self._changed.wait(left)
