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
    """Calls `repair` in a thread of its own some seconds after `is_due` was set, and again until it succeeds.

    It ends when the run is fenced. A loss that it finds is left to those who read: they name what is missing.
    """

    def __init__(self, repair: Callable[[], object], *, interval_seconds: float = MEND_SECONDS) -> None:
        self.is_due = threading.Event()
        self._repair = repair
        self._interval_seconds = interval_seconds
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mender", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a repair under way is let finish."""
        self._ending.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ending.wait(self._interval_seconds):
            if not self.is_due.is_set():
                continue
            self.is_due.clear()
            try:
                self._repair()
            except FencedError:
                return
            except (NotDurableError, DataLossError):
                self.is_due.set()
