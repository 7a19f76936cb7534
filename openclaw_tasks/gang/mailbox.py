"""Requests of other threads to an event loop's thread, which a selector hears."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable


class Mailbox:
    """`ask` from any thread; everything else is the loop's."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._is_open = True

    def fileno(self) -> int:
        """Readable when there is a request."""
        return self._read

    def ask(self, request: Callable[[], None]) -> None:
        """Let the loop's thread call `request`. Nothing happens once it is closed."""
        with self._lock:
            if self._is_open:
                self._requests.put(request)
                with contextlib.suppress(BlockingIOError):  # so full of wake-ups that it will be heard
                    os.write(self._write, b"\0")

    def answer(self) -> None:
        """Call all requests."""
        os.read(self._read, 4096)
        while not self._requests.empty():
            self._requests.get()()

    def close(self) -> None:
        """Hear no more."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                os.close(self._read)
                os.close(self._write)
