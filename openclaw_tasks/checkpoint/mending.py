"""Trying again what fails because targets do not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from openclaw_tasks.errors import DataLossError, FencedError, NotDurableError

T = TypeVar("T")
_RETRY_SECONDS = 1.0
MEND_SECONDS = 5.0


class Patience:
    """Tries again what fails because targets do not answer, until the time is up."""

    def __init__(self, wait_seconds: float) -> None:
        self._until = time.monotonic() + wait_seconds

    def insist(self, attempt: Callable[[], T]) -> T:
        while True:
            try:
                return attempt()
            except NotDurableError:
                if time.monotonic() + _RETRY_SECONDS >= self._until:
                    raise
                time.sleep(_RETRY_SECONDS)


class Mender:
    """Calls `repair`, in a thread of its own, when there is something to mend and a chance to.

    `tell_degraded`: something was acknowledged by fewer than n targets. `tell_return`: a target that failed
    answers again. While some target fails, a repair waits for the next return: it could only list what it cannot reach.
    Ends when the run is fenced. A loss that it finds is left to those who read: they name what is missing.
    """

    def __init__(
        self,
        repair: Callable[[], object],
        is_failing: Callable[[], bool],
        *,
        interval_seconds: float = MEND_SECONDS,
    ) -> None:
        self._repair = repair
        self._is_failing = is_failing
        self._interval_seconds = interval_seconds
        self._is_needed = threading.Event()
        self._is_returned = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mender", daemon=True)
        self._thread.start()

    def tell_degraded(self) -> None:
        self._is_needed.set()

    def tell_return(self) -> None:
        self._is_returned.set()

    def stop(self) -> None:
        """End the thread; a repair under way is let finish."""
        self._ending.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ending.wait(self._interval_seconds):
            if not (self._is_returned.is_set() or (self._is_needed.is_set() and not self._is_failing())):
                continue
            self._is_returned.clear()
            self._is_needed.clear()
            try:
                self._repair()
            except FencedError:
                return
            except (NotDurableError, DataLossError):
                self._is_needed.set()
