"""Lossless packing of what goes into the erasure code: byte planes, then zstd."""

from __future__ import annotations

from collections.abc import Sequence

from openclaw_tasks.storage.store import Buffer


def planes_of_codec(codec: str) -> int:
    """Byte planes that suit a codec's payload: 2 for bf16, 4 for exact, 1 (no split) for int8 and others."""
    return {"bf16": 2, "exact": 4}.get(codec, 1)


def pack_group(records: Sequence[Buffer], *, planes: int, offsets: Sequence[int] | None = None) -> bytes:
    """One payload of several records, which are opaque bytes.

    `offsets`: where in each record the values begin whose bytes are split into `planes` (what comes before is
    packed unsplit); 0 if not given, which costs some 0.1 % in size, never correctness.
    """
    raise NotImplementedError


def unpack_group(payload: Buffer) -> list[bytes]:
    """The records of `pack_group`; DamagedError if the payload is not one."""
    raise NotImplementedError


def pack_object(data: Buffer, *, planes: int = 4) -> bytes:
    """One payload of one base object (safetensors, mostly of 4-byte values)."""
    raise NotImplementedError


def unpack_object(payload: Buffer) -> bytes:
    """The object of `pack_object`; DamagedError if the payload is not one."""
    raise NotImplementedError
