"""Work that is split over the machine's cores, each part in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Cores:
    """One process a core. Use as a context."""

    def __init__(self) -> None:
        # Not forked: this process may have threads.
        self._pool = ProcessPoolExecutor(len(os.sched_getaffinity(0)), multiprocessing.get_context("spawn"))

    def __enter__(self) -> Cores:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def count(self, work: Callable[[T], Counter[str]], parts: Iterable[T]) -> Counter[str]:
        """What `work` counts in all parts, whichever core does them."""
        total: Counter[str] = Counter()
        for counted in self._pool.map(work, parts):
            total.update(counted)
        return total
