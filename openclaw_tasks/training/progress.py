"""A page of shared memory in which a rank shows that it moves, and what it does.

The agent makes it before the fork and watches it: a rank that is frozen, or hangs in the user's code, stops
counting, while one that waits for a slow peer goes on counting. A signal handler or a message could not tell that,
since both need the rank to run.
"""

from __future__ import annotations

import enum
import mmap
import os
import time

_BEAT, _STEP, _PHASE, _STRUCK_AT, _STEP_SECONDS = range(5)
_BYTES = mmap.PAGESIZE


class Phase(enum.IntEnum):
    """What a rank is doing."""

    STARTING = 0
    JOINING = 1  # waits for a generation, or meshes
    COMPUTING = 2
    EXCHANGING = 3
    STORAGE_WAIT = 4  # the ring is full: storage lags by max_unprotected_steps
    HELD = 5  # waits for a fault to strike elsewhere
    LEAVING = 6


class ProgressPage:
    """Both ends use this class over the same descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, _BYTES)
        self._bytes = memoryview(self._map)
        self._words = self._bytes.cast("Q")
        self._floats = self._bytes.cast("d")

    @classmethod
    def create(cls) -> ProgressPage:
        fd = os.memfd_create("openclaw-progress", os.MFD_CLOEXEC)
        os.ftruncate(fd, _BYTES)
        return cls(fd)

    def beat(self) -> None:
        """I move."""
        self._words[_BEAT] += 1

    def enter(self, phase: Phase, step: int) -> None:
        """I do this now, for this step."""
        self._words[_PHASE] = phase
        self._words[_STEP] = step
        self.beat()

    def took(self, seconds: float) -> None:
        """A step took this long (exponential average, for the reader's deadline)."""
        old = self._floats[_STEP_SECONDS]
        self._floats[_STEP_SECONDS] = seconds if old == 0.0 else 0.7 * old + 0.3 * seconds

    def strike(self) -> None:
        """I am about to kill or stop myself, as a test asked: note the time on CLOCK_MONOTONIC."""
        self._floats[_STRUCK_AT] = time.monotonic()

    @property
    def beats(self) -> int:
        return self._words[_BEAT]

    @property
    def step(self) -> int:
        return self._words[_STEP]

    @property
    def phase(self) -> Phase:
        return Phase(self._words[_PHASE])

    @property
    def struck_at(self) -> float | None:
        return self._floats[_STRUCK_AT] or None

    @property
    def step_seconds(self) -> float | None:
        return self._floats[_STEP_SECONDS] or None

    def close(self) -> None:
        for view in (self._words, self._floats, self._bytes):
            view.release()
        self._map.close()
        os.close(self.fd)
