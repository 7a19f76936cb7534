"""A bounded queue with a thread that empties it into code which may be slow, absent or wrong."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

logger = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS: Final = 0.1
_LAST_RETRY_SECONDS: Final = 30.0

_DEFINITE: Final = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)
"""Errors of the system that asking again does not mend."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of the events that a spool was offered."""

    name: str
    delivered: int
    errors: int
    """Times that the receiver raised."""
    unsent: int
    """Events that it never took: dropped as too many, refused by it, or left when time was up."""


class Spool:
    """Hands events to `receiver` in order, in its own thread; the offering side never waits and never fails.

    A receiver that raises OSError (as connections do that are refused, reset or timed out) is called again
    with the same event, later and later. Any other exception, or a file that is not there, gives that event
    up. The first error is logged, all are counted. When `capacity` events wait, the oldest is dropped, and
    counted as unsent.
    """

    def __init__(
        self,
        receiver: Callable[[Mapping[str, Any]], None],
        *,
        name: str,
        kinds: Collection[str] | None = None,
        capacity: int = 10_000,
    ) -> None:
        self.name = name
        self._receiver = receiver
        self._kinds = None if kinds is None else frozenset(kinds)
        self._capacity = capacity
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._in_hand: Mapping[str, Any] | None = None
        self._delivered = self._errors = self._unsent = 0
        self._end: float | None = None
        """Monotonic time after which nothing is handed over any more; None while open."""
        self._changed = threading.Condition()
        # A daemon: a receiver that never returns must not keep the process.
        self._thread = threading.Thread(target=self._run, name=f"spool-{name}", daemon=True)
        self._thread.start()

    def offer(self, event: Mapping[str, Any]) -> None:
        """Take one event, unless closed or not of the kinds asked for. Never blocks on the receiver."""
        if self._kinds is not None and event.get("kind") not in self._kinds:
            return
        with self._changed:
            if self._end is not None:
                return
            if len(self._waiting) >= self._capacity:
                self._waiting.popleft()
                self._unsent += 1
            self._waiting.append(event)
            self._changed.notify_all()

    def finish(self, *, grace_seconds: float) -> None:
        """Take no more, and give the receiver at most `grace_seconds` for what waits; returns at once."""
        with self._changed:
            if self._end is None:
                self._end = time.monotonic() + grace_seconds
            self._changed.notify_all()

    def close(self, *, grace_seconds: float) -> Delivery:
        """`finish`, wait for the end of that, and say what became of the events. May be called again."""
        self.finish(grace_seconds=grace_seconds)
        assert self._end is not None
        self._thread.join(max(0.0, self._end - time.monotonic()))
        with self._changed:
            self._unsent += len(self._waiting)
            self._waiting.clear()
            # In hand still: the receiver has not returned, or was to be asked again.
            left = 0 if self._in_hand is None else 1
            return Delivery(self.name, self._delivered, self._errors, self._unsent + left)

    def _run(self) -> None:
        while (event := self._next()) is not None:
            retry_seconds = _FIRST_RETRY_SECONDS
            while not self._hand_over(event) and self._wait_to_retry(retry_seconds):
                retry_seconds = min(2 * retry_seconds, _LAST_RETRY_SECONDS)

    def _next(self) -> Mapping[str, Any] | None:
        """The next event, now in hand; None when there will be none."""
        with self._changed:
            while not self._waiting:
                if self._end is not None:
                    return None
                self._changed.wait()
            if self._end is not None and time.monotonic() >= self._end:
                return None
            self._in_hand = self._waiting.popleft()
            return self._in_hand

    def _hand_over(self, event: Mapping[str, Any]) -> bool:
        """Whether the receiver is done with `event`; False when it should be asked again."""
        try:
            self._receiver(event)
        except OSError as error:
            self._note_error(error)
            if not isinstance(error, _DEFINITE):
                return False
            self._give_up()
            return True
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a thread's outermost loop, anybody's code
            self._note_error(error)
            self._give_up()
            return True
        with self._changed:
            self._in_hand = None
            self._delivered += 1
        return True

    def _give_up(self) -> None:
        with self._changed:
            self._in_hand = None
            self._unsent += 1

    def _wait_to_retry(self, seconds: float) -> bool:
        """Sleep until the next try; False when there is no time for one."""
        with self._changed:
            wake = time.monotonic() + seconds
            while (now := time.monotonic()) < wake:
                if self._end is not None:
                    # Closing: the last tries come quickly, or not at all.
                    wake = min(wake, now + _FIRST_RETRY_SECONDS)
                    if now >= self._end:
                        return False
                self._changed.wait(wake - now if self._end is None else min(wake, self._end) - now)
            return True

    def _note_error(self, error: BaseException) -> None:
        with self._changed:
            self._errors += 1
            is_first = self._errors == 1
        if is_first:
            logger.warning(
                "%s raised %s: %s; the run goes on, further errors of it are only counted",
                self.name,
                type(error).__name__,
                error,
                exc_info=error,
            )
