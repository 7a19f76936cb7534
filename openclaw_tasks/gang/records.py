"""The records that an agent holds: the rings of its ranks, the living one and those that died."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_tasks.training.ring import RecordRing


class HeldRecords:
    """Final records after the durable step, over several rings."""

    def __init__(self) -> None:
        self._rings: list[RecordRing] = []
        self._retired: set[int] = set()
        self.durable_step = 0

    def add(self, ring: RecordRing) -> None:
        """A new rank's ring."""
        ring.free_through(self.durable_step)
        self._rings.append(ring)

    def retire(self, ring: RecordRing) -> None:
        """Its rank is dead: forget the ring as soon as it holds nothing that is still needed."""
        self._retired.add(id(ring))
        self._drop_empty()

    def advance(self, step: int) -> None:
        """Everything up to `step` is durable: give its slots back."""
        self.durable_step = max(self.durable_step, step)
        for ring in self._rings:
            ring.free_through(self.durable_step)
        self._drop_empty()

    def span(self) -> tuple[int, int, int] | None:
        """(first, last, bytes) of the longest run of steps held that ends at the newest final record."""
        index = self._index()
        if not index:
            return None
        last = first = max(index)
        size = len(index[last])
        while first - 1 in index:
            first -= 1
            size += len(index[first])
        return first, last, size

    def records(self, first: int, last: int) -> Sequence[memoryview]:
        """The records of steps first..last, valid until they are durable."""
        index = self._index()
        return [index[step] for step in range(first, last + 1)]

    def _index(self) -> dict[int, memoryview]:
        return {
            step: ring.record(slot) for ring in self._rings for step, slot in ring.held() if step > self.durable_step
        }

    def _drop_empty(self) -> None:
        for ring in [ring for ring in self._rings if id(ring) in self._retired and ring.is_empty()]:
            self._rings.remove(ring)
            self._retired.discard(id(ring))
            ring.close()
