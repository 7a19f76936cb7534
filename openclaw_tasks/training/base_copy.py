"""A copy of a state in shared memory, as a rank hands it to its agent. Needs no torch: the agent has none."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
from collections.abc import Mapping, Sequence
from typing import Any

Parts = Sequence[tuple[str, int]]


def pack_base(objects: Mapping[str, Any], plain: Mapping[str, Any]) -> tuple[int, Parts]:
    """Write the objects, one after the other, then the plain values as JSON, into a fresh memfd.

    An object is a buffer, or a list of buffers that follow each other. Returns the descriptor (the caller closes it)
    and each part's name and length in bytes.
    """
    assert "plain" not in objects, "the name of the plain values"
    fd = os.memfd_create("openclaw-base", os.MFD_CLOEXEC)
    offset = 0
    parts = []
    for name in [*sorted(objects), "plain"]:
        data = json.dumps(plain).encode() if name == "plain" else objects[name]
        begun = offset
        for buffer in data if isinstance(data, list) else [data]:
            offset += _write_all(fd, _bytes_of(buffer), offset)
        parts.append((name, offset - begun))
    return fd, parts


class BaseCopy:
    """What `pack_base` wrote, mapped; owns the descriptor."""

    def __init__(self, fd: int, parts: Parts) -> None:
        self._fd = fd
        self._map = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        self.parts = parts
        self.size_bytes = sum(length for _, length in parts)

    def unpack(self) -> tuple[dict[str, memoryview], dict[str, Any]]:
        """The objects, as views, and the plain values."""
        view = memoryview(self._map)
        objects: dict[str, memoryview] = {}
        offset = 0
        for name, length in self.parts:
            objects[name] = view[offset : offset + length]
            offset += length
        plain: dict[str, Any] = json.loads(bytes(objects.pop("plain")))
        return objects, plain

    def close(self) -> None:
        """Give the memory back; as soon as they are gone, if views of it are still in use."""
        with contextlib.suppress(BufferError):
            self._map.close()
        os.close(self._fd)


def _bytes_of(data: Any) -> memoryview:
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")  # a view with a zero in its shape cannot be cast


def _write_all(fd: int, view: memoryview, offset: int) -> int:
    written = 0
    while written < len(view):
        written += os.pwrite(fd, view[written:], offset + written)
    return written
