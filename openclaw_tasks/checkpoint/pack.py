"""Lossless packing of what goes into the erasure code: byte planes, then zstd.

Floating-point numbers compress poorly as they stand, since the bytes that are alike (sign and exponent) lie
between those that are noise. Split by their place in the number, the former shrink well and the latter are
kept as they are. The split only reorders bytes: records come back exactly, whatever they hold.

Records are opaque: all their bytes are split, headers too. Where the numbers begin does not matter as long as
it is a multiple of their size in all records, and if it is not, only some percent of size are lost.

A payload's own digest is its stripes' business (stripes.py); what is checked here is that lengths agree.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import zstandard

from openclaw_tasks.errors import DamagedError, UsageError
from openclaw_tasks.storage.digested_json import canonical_json
from openclaw_tasks.storage.store import Buffer

FORMAT = 1
MAGIC = b"OCPACKED"
ZSTD_LEVEL = 1
PLANE_BYTES = 128 * 1024
"""Bytes of one plane in one chunk: as a zstd block, which then holds bytes of one kind only."""
_LENGTH = struct.Struct("<I")
_PREFIX_BYTES = len(MAGIC) + _LENGTH.size


def planes_of_codec(codec: str) -> int:
    """Byte planes that suit a codec's payload: 2 for bf16, 4 for exact, 1 (no split) for int8 and others."""
    return {"bf16": 2, "exact": 4}.get(codec, 1)


def pack_group(records: Sequence[Buffer], *, planes: int) -> bytes:
    """One payload of several records, their bytes split into `planes`."""
    assert planes >= 1, planes
    views = [memoryview(record).cast("B") for record in records]
    header = _Header(planes, PLANE_BYTES, tuple(len(view) for view in views))
    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compressobj(size=sum(header.lengths))
    # Neither the records nor what becomes of them ever stand in memory twice: those of a large model fill much of it.
    payload = io.BytesIO()
    payload.write(header.to_bytes())
    for part in _split_planes(_chunks(views, planes), planes):
        payload.write(compressor.compress(part))
    payload.write(compressor.flush())
    return payload.getvalue()


def unpack_group(payload: Buffer) -> list[memoryview]:
    """The records of `pack_group`, as read-only views of one buffer.

    DamagedError if the payload is not one, UsageError if it is of a later format.
    """
    header, frame = _read_header(memoryview(payload).cast("B"))
    packed = _decompress(frame, sum(header.lengths))
    body = memoryview(_join_planes(packed, header.planes, header.plane_bytes)).toreadonly()
    records = []
    for length in header.lengths:
        records.append(body[:length])
        body = body[length:]
    return records


def pack_object(data: Buffer, *, planes: int = 4) -> bytes:
    """One payload of one base object (safetensors, mostly of 4-byte numbers)."""
    return pack_group([data], planes=planes)


def unpack_object(payload: Buffer) -> memoryview:
    """The object, read-only, of `pack_object`. Raises as `unpack_group`."""
    records = unpack_group(payload)
    if len(records) != 1:
        raise DamagedError(f"payload holds {len(records)} records in place of one object")
    return records[0]


@dataclass(frozen=True, slots=True)
class _Header:
    planes: int
    plane_bytes: int
    lengths: tuple[int, ...]

    def to_bytes(self) -> bytes:
        text = canonical_json(
            {
                "format": FORMAT,
                "compression": "zstd",
                "planes": self.planes,
                "plane_bytes": self.plane_bytes,
                "lengths": list(self.lengths),
            }
        )
        return MAGIC + _LENGTH.pack(len(text)) + text


def _read_header(view: memoryview) -> tuple[_Header, memoryview]:
    """The header, and the compressed rest."""
    if len(view) < _PREFIX_BYTES or bytes(view[: len(MAGIC)]) != MAGIC:
        raise DamagedError("payload does not begin as a packed one does")
    end = _PREFIX_BYTES + _LENGTH.unpack_from(view, len(MAGIC))[0]
    try:
        fields = json.loads(bytes(view[_PREFIX_BYTES:end]))
        if (fields["format"], fields["compression"]) != (FORMAT, "zstd"):
            raise UsageError(f"payload is of format {fields['format']!r}, this version reads {FORMAT}: upgrade")
        header = _Header(fields["planes"], fields["plane_bytes"], tuple(fields["lengths"]))
        is_possible = header.planes >= 1 and header.plane_bytes >= 1 and min(header.lengths, default=0) >= 0
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"payload has no proper header ({error})") from error
    if not is_possible or header.to_bytes() != view[:end]:
        raise DamagedError("payload has a header that cannot be")
    return header, view[end:]


def _decompress(frame: memoryview, expected_bytes: int) -> bytes:
    try:
        if zstandard.get_frame_parameters(frame).content_size != expected_bytes:
            raise DamagedError("payload's header and its compressed part disagree about the length")
        return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DamagedError(f"payload cannot be decompressed ({error})") from error


def _chunks(views: Sequence[memoryview], planes: int) -> Iterator[Buffer]:
    """The views' bytes, as if they were one, in chunks of `planes` planes; the last one may be shorter."""
    size, begun = planes * PLANE_BYTES, bytearray()
    for view in views:
        position = 0
        if begun:
            position = size - len(begun)
            begun += view[:position]
            if len(begun) < size:
                continue
            yield begun
            begun = bytearray()
        whole = len(view) - (len(view) - position) % size
        for start in range(position, whole, size):
            yield view[start : start + size]
        begun += view[max(position, whole) :]
    if begun:
        yield begun


def _split_planes(chunks: Iterable[Buffer], planes: int) -> Iterator[Buffer]:
    """Of each chunk the first bytes of all numbers, then the second ones, and so on."""
    for chunk in chunks:
        values = np.frombuffer(chunk, np.uint8)
        for plane in range(planes):
            yield np.ascontiguousarray(values[plane::planes]).data


def _join_planes(packed: bytes, planes: int, plane_bytes: int) -> Buffer:
    """The inverse of `_split_planes`."""
    if planes == 1:
        return packed
    source = np.frombuffer(packed, np.uint8)
    values = np.empty_like(source)
    for start in range(0, len(values), planes * plane_bytes):
        chunk = values[start : start + planes * plane_bytes]
        taken = start
        for plane in range(planes):
            part = chunk[plane::planes]
            part[:] = source[taken : taken + len(part)]
            taken += len(part)
    return values.data
