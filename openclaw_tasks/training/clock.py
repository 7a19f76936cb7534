"""How much of a stretch of time went into work that training needs anyway."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

_KEPT_SPANS = 4096


class UsefulTime:
    """Spans of forward, backward, decode and apply on CLOCK_MONOTONIC, the newest few thousand."""

    def __init__(self) -> None:
        self._spans: deque[tuple[float, float]] = deque(maxlen=_KEPT_SPANS)

    @contextmanager
    def measure(self) -> Iterator[None]:
        """The body is such work."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._spans.append((begun, time.monotonic()))

    def between(self, start: float, end: float) -> float:
        """Seconds of such work in [start, end]."""
        return sum(max(0.0, min(stop, end) - max(begun, start)) for begun, stop in self._spans)
