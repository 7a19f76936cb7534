"""The records that an agent holds: the rings of its ranks, the living one and those that died."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_tasks.training.ring import RecordRing

_EVERYTHING = 2**63


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

    def discard(self) -> None:
        """Let go of all records: the gang begins again after the durable step. The rings' ranks are dead."""
        for ring in self._rings:
            ring.free_through(_EVERYTHING)
        self._drop_empty()

    def span(self) -> tuple[int, int, int] | None:
        """(first, last, bytes) of the run of steps to put next; None without any final record.

        That is the run after the durable step, if it is held. Later steps may be held too, with a gap between, when
        one rank has died and another has joined since: they are told when their turn comes. Without the next step,
        the run that ends at the newest record: others may still hold what lies between.
        """
        index = self._index()
        if not index:
            return None
        first = last = self.durable_step + 1 if self.durable_step + 1 in index else max(index)
        while first - 1 in index:
            first -= 1
        while last + 1 in index:
            last += 1
        return first, last, sum(len(index[step]) for step in range(first, last + 1))

    def records(self, first: int, last: int) -> Sequence[memoryview]:
        """The records of steps first..last, all of which are held; valid until they are durable."""
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
