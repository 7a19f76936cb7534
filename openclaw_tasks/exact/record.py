"""One step's record: all that the update of a step depends on, and nothing else.

A record's bytes are a pure function of (job, step). Layout, little-endian:

    magic     8 bytes  b"OCLWREC1"
    length    u32      of the header, padding included
    header    canonical JSON, floats as float.hex, padded with spaces so that the payload starts at a
              multiple of 64 bytes
    payload   the encoded summed gradient in the flat layout; empty when the step is skipped
    buffers   raw bytes of each buffer that the step changed, in the header's order
    digest    SHA-256 over all before it

Imports no torch: agents, which have none, read and write records too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from openclaw_tasks.errors import DamagedError
from openclaw_tasks.exact.plain import Json, canonical_json, decode_plain, encode_plain

MAGIC = b"OCLWREC1"
FORMAT = 1
DIGEST_BYTES = 32
_PREFIX_BYTES = len(MAGIC) + 4
_PAYLOAD_ALIGNMENT = 64
_HEADER_KEYS = {
    "format", "step", "decision", "items", "loss", "present", "codec", "payload", "buffers", "scaler",
}  # fmt: skip

Buffer: TypeAlias = bytes | bytearray | memoryview | npt.NDArray[np.uint8]
Decision: TypeAlias = Literal["apply", "skip"]


class BufferChange(NamedTuple):
    """A buffer's value after a step: dtype as safetensors spells it, raw bytes in C order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Buffer


class BufferShape(NamedTuple):
    """What `max_record_bytes` needs to know of a buffer."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


def byte_view(data: Buffer) -> memoryview:
    """`data` as a one-dimensional view of unsigned bytes, not copied."""
    view = data.data if isinstance(data, np.ndarray) else memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def pack_presence(flags: Sequence[bool]) -> bytes:
    """One bit an entry of the layout, entry i in bit i % 8 of byte i // 8; 1 means it has a gradient."""
    return np.packbits(np.asarray(flags, dtype=np.bool_), bitorder="little").tobytes()


def unpack_presence(present: bytes, count: int) -> list[bool]:
    """The `count` flags of a mask. Raises DamagedError when it is not a mask of that many entries."""
    bits = np.unpackbits(np.frombuffer(present, dtype=np.uint8), bitorder="little")
    if len(present) != (count + 7) // 8 or bits[count:].any():
        raise DamagedError(f"a presence mask of {len(present)} bytes does not describe {count} entries")
    flags: list[bool] = bits[:count].astype(np.bool_).tolist()
    return flags


def union_presence(masks: Sequence[bytes]) -> bytes:
    """A parameter has a gradient when it has one in any shard. The masks have one length."""
    assert len({len(mask) for mask in masks}) == 1
    union = 0
    for mask in masks:
        union |= int.from_bytes(mask, "little")
    return union.to_bytes(len(masks[0]), "little")


@dataclass(frozen=True, slots=True)
class Record:
    """What one step did. `step` counts from 1: the step whose update this is.

    `loss` is summed over `items`; `present` is a mask of `pack_presence`; `scaler` holds plain values.
    """

    step: int
    decision: Decision
    items: int
    loss: float
    present: bytes
    buffers: tuple[BufferChange, ...]
    codec: str
    payload: Buffer
    scaler: dict[str, Any] | None = None

    def _header(self) -> bytes:
        header: dict[str, Json] = {
            "format": FORMAT,
            "step": self.step,
            "decision": self.decision,
            "items": self.items,
            "loss": float(self.loss).hex(),
            "present": self.present.hex(),
            "codec": self.codec,
            "payload": byte_view(self.payload).nbytes,
            "buffers": [[b.name, b.dtype, list(b.shape), byte_view(b.data).nbytes] for b in self.buffers],
            "scaler": encode_plain(self.scaler, "scaler"),
        }
        return _pad_header(canonical_json(header))

    def _size_bytes(self, header: bytes) -> int:
        data = byte_view(self.payload).nbytes + sum(byte_view(b.data).nbytes for b in self.buffers)
        return _PREFIX_BYTES + len(header) + data + DIGEST_BYTES

    def _parts(self, header: bytes) -> list[bytes | memoryview]:
        data = (byte_view(self.payload), *(byte_view(b.data) for b in self.buffers))
        return [MAGIC, len(header).to_bytes(4, "little"), header, *data]

    def write_into(self, memory: memoryview, *, seal: bool = True) -> int:
        """Write the record at the start of `memory` and return its bytes.

        With `seal=False` the digest stays zero, and `seal_record` has to fill it in before anybody
        reads: hashing costs several times the copying. Raises ValueError when `memory` is too small.
        """
        view, header = byte_view(memory), self._header()
        size = self._size_bytes(header)
        if view.nbytes < size:
            raise ValueError(f"a record of {size} bytes does not fit into {view.nbytes}")
        position = 0
        for part in (*self._parts(header), bytes(DIGEST_BYTES)):
            view[position : position + len(part)] = part
            position += len(part)
        if seal:
            seal_record(view[:size])
        return size

    def to_bytes(self) -> bytes:
        """The record as one sealed buffer."""
        parts = self._parts(self._header())
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        return b"".join([*parts, digest.digest()])

    @classmethod
    def parse(cls, data: Buffer, *, verify: bool = True) -> Record:
        """The record that fills `data` exactly; `payload` and `buffers` are views of `data`.

        `verify=False` leaves out the digest, for bytes that were checked already. Raises DamagedError.
        """
        view = byte_view(data)
        if view.nbytes < _PREFIX_BYTES + DIGEST_BYTES or view[: len(MAGIC)] != MAGIC:
            raise DamagedError(f"these {view.nbytes} bytes are not a record of this format")
        if verify and hashlib.sha256(view[:-DIGEST_BYTES]).digest() != view[-DIGEST_BYTES:]:
            raise DamagedError(f"a record of {view.nbytes} bytes does not match its digest")
        start = _PREFIX_BYTES + int.from_bytes(view[len(MAGIC) : _PREFIX_BYTES], "little")
        end = view.nbytes - DIGEST_BYTES
        if start > end:
            raise DamagedError("a record's header is longer than the record")
        try:
            return _from_header(json.loads(bytes(view[_PREFIX_BYTES:start])), view[start:end])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise DamagedError(f"a record's header cannot be read: {error}") from error


def seal_record(memory: memoryview) -> None:
    """Fill in the digest of a record that was written with `seal=False` and fills `memory` exactly."""
    memory[-DIGEST_BYTES:] = hashlib.sha256(memory[:-DIGEST_BYTES]).digest()


def max_record_bytes(
    payload_bytes: int, num_entries: int, buffers: Iterable[BufferShape] = (), *, scaler_bytes: int = 1024
) -> int:
    """Bytes that no record exceeds, for `payload_bytes` of encoded gradient and these buffers.

    `scaler_bytes` bounds the scaler state's JSON.
    """
    shapes = list(buffers)
    longest = 2**63
    header: dict[str, Json] = {
        "format": FORMAT,
        "step": longest,
        "decision": "apply",
        "items": longest,
        "loss": (-float.fromhex("0x1.fffffffffffffp-1022")).hex(),
        "present": "0" * (2 * ((num_entries + 7) // 8)),
        "codec": "x" * 32,
        "payload": payload_bytes,
        "buffers": [[b.name, b.dtype, list(b.shape), b.size_bytes] for b in shapes],
        "scaler": "x" * scaler_bytes,
    }
    data = payload_bytes + sum(b.size_bytes for b in shapes)
    return _PREFIX_BYTES + len(_pad_header(canonical_json(header))) + data + DIGEST_BYTES


def _pad_header(header: bytes) -> bytes:
    return header + b" " * (-(_PREFIX_BYTES + len(header)) % _PAYLOAD_ALIGNMENT)


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _text(value: object) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r} is not text")
    return value


def _from_header(header: dict[str, Any], body: memoryview) -> Record:
    """Raises ValueError, TypeError or KeyError, which `parse` turns into DamagedError."""
    if not isinstance(header, dict) or set(header) != _HEADER_KEYS or header["format"] != FORMAT:
        raise ValueError("its keys or its format are not ours")
    if header["decision"] not in ("apply", "skip"):
        raise ValueError(f"decision {header['decision']!r}")
    position = _count(header["payload"])
    payload = body[:position]
    changes: list[BufferChange] = []
    for name, dtype, shape, size in header["buffers"]:
        data = body[position : position + _count(size)]
        changes.append(BufferChange(_text(name), _text(dtype), tuple(_count(n) for n in shape), data))
        position += size
    if position != body.nbytes:
        raise ValueError(f"it describes {position} bytes, and {body.nbytes} follow")
    scaler = decode_plain(header["scaler"])
    if scaler is not None and not isinstance(scaler, dict):
        raise ValueError("its scaler is not a dict")
    return Record(
        step=_count(header["step"]),
        decision=header["decision"],
        items=_count(header["items"]),
        loss=float.fromhex(header["loss"]),
        present=bytes.fromhex(header["present"]),
        buffers=tuple(changes),
        codec=_text(header["codec"]),
        payload=payload,
        scaler=scaler,
    )
