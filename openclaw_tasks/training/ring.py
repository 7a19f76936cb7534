"""The record ring: shared memory between one rank (writer) and its agent (reader).

A `memfd` passed by descriptor: it has no name, so a killed process leaves nothing behind, and the agent still has
the records of a rank that died. Fixed slots instead of a byte ring, and always the lowest free one: the same few
pages stay in the cache, and memory that training never needed is never touched.

Layout, little-endian 64-bit words: magic, slots, slot_bytes, final_step; then for each slot state, step, length,
spare; the slots' bytes from the next page on. Only the writer turns a slot from free to written, only the reader
turns it back; each word is stored by a single aligned 8-byte write.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator

_MAGIC = 0x4F43_5249_4E47_0001
_HEADER_WORDS = 4
_SLOT_WORDS = 4
_FREE, _WRITTEN = 0, 1
_FINAL_STEP = 3


class RecordRing:
    """Both ends use this class; `create` on the rank's side, `attach` on the agent's."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, 0)
        self._bytes = memoryview(self._map)
        self._words = self._bytes[: len(self._bytes) // 8 * 8].cast("Q")
        assert self._words[0] == _MAGIC, "not a record ring"
        self.slots = self._words[1]
        self.slot_bytes = self._words[2]
        self._data_start = _data_start(self.slots)

    @classmethod
    def create(cls, slots: int, slot_bytes: int) -> RecordRing:
        """A new ring of `slots` records of at most `slot_bytes` each."""
        slot_bytes = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        fd = os.memfd_create("openclaw-ring", os.MFD_CLOEXEC)
        os.ftruncate(fd, _data_start(slots) + slots * slot_bytes)
        header = b"".join(word.to_bytes(8, "little") for word in (_MAGIC, slots, slot_bytes, 0))
        os.pwrite(fd, header, 0)
        return cls(fd)

    @classmethod
    def attach(cls, fd: int) -> RecordRing:
        """The ring behind a descriptor that came over the control channel; owns the descriptor."""
        return cls(fd)

    # The rank's side

    def claim(self) -> int | None:
        """The lowest free slot, or None when every slot holds a record that is not durable yet."""
        for slot in range(self.slots):
            if self._words[self._slot(slot)] == _FREE:
                return slot
        return None

    def buffer(self, slot: int) -> memoryview:
        """A claimed slot's bytes, to write into."""
        start = self._data_start + slot * self.slot_bytes
        return self._bytes[start : start + self.slot_bytes]

    def publish(self, slot: int, step: int, length: int) -> None:
        """The slot holds the record of `step` from now on."""
        base = self._slot(slot)
        self._words[base + 1] = step
        self._words[base + 2] = length
        self._words[base] = _WRITTEN

    def mark_final(self, step: int) -> None:
        """Nobody can hold another version of the records up to `step`."""
        self._words[_FINAL_STEP] = step

    # The agent's side

    @property
    def final_step(self) -> int:
        return self._words[_FINAL_STEP]

    def held(self) -> Iterator[tuple[int, int]]:
        """(step, slot) of each record in the ring that is final."""
        final = self.final_step
        for slot in range(self.slots):
            base = self._slot(slot)
            if self._words[base] == _WRITTEN and self._words[base + 1] <= final:
                yield self._words[base + 1], slot

    def record(self, slot: int) -> memoryview:
        """The record's bytes, valid until `free`."""
        start = self._data_start + slot * self.slot_bytes
        return self._bytes[start : start + self._words[self._slot(slot) + 2]]

    def free_through(self, step: int) -> None:
        """Give back every slot whose record is durable (its step is at most `step`)."""
        for slot in range(self.slots):
            base = self._slot(slot)
            if self._words[base] == _WRITTEN and self._words[base + 1] <= step:
                self._words[base] = _FREE

    def is_empty(self) -> bool:
        """Whether no final record is left in it."""
        return next(self.held(), None) is None

    def close(self) -> None:
        """Give the memory back; as soon as they are gone, if views of records are still in use."""
        self._words.release()
        self._bytes.release()
        with contextlib.suppress(BufferError):
            self._map.close()
        os.close(self.fd)

    def _slot(self, slot: int) -> int:
        return _HEADER_WORDS + slot * _SLOT_WORDS


def _data_start(slots: int) -> int:
    words = _HEADER_WORDS + slots * _SLOT_WORDS
    return -(-words * 8 // mmap.PAGESIZE) * mmap.PAGESIZE
