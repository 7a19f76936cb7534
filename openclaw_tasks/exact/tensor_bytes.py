"""Tensors as bytes, bytes as tensors: raw views, and the safetensors format for many of them.

Written here rather than through the library to copy the data exactly once, and to hash it without
copying; a test reads the result with the library and the other way round. Little-endian machines only
(every platform that torch supports). Nothing is ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from openclaw_tasks.errors import DamagedError, RunError
from openclaw_tasks.exact.plain import Json, canonical_json
from openclaw_tasks.exact.record import Buffer, byte_view

_DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_HEADER_LIMIT_BYTES = 100_000_000
"""The safetensors library's own limit."""


class StoredTensor(NamedTuple):
    """A tensor as it lies in a buffer: dtype as safetensors spells it, bytes in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


def dtype_name(dtype: torch.dtype) -> str:
    """The dtype as safetensors spells it. Raises RunError for one that the format does not know."""
    name = _NAMES.get(dtype)
    if name is None:
        raise RunError(f"tensors of {dtype} cannot be stored")
    return name


def dtype_named(name: str) -> torch.dtype:
    """The inverse of `dtype_name`. Raises DamagedError."""
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise DamagedError(f"a stored tensor has the unknown dtype {name!r}")
    return dtype


def byte_array(data: Buffer) -> npt.NDArray[np.uint8]:
    """`data` as an array of bytes, not copied."""
    return np.frombuffer(byte_view(data), dtype=np.uint8)


class _ReadOnlyMemory:
    """Shows read-only memory to numpy as writable, and keeps it alive.

    Torch has no read-only tensors and warns about such arrays; whoever gets one promises to only read.
    """

    def __init__(self, array: npt.NDArray[np.uint8]) -> None:
        self.array = array
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def byte_tensor(data: Buffer) -> Tensor:
    """`data` as a uint8 tensor over the same memory. Only read it when `data` is read-only."""
    array = byte_array(data)
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_ReadOnlyMemory(array)))


def raw_bytes(tensor: Tensor) -> memoryview:
    """The tensor's bytes in C order; a view of its memory when it is contiguous and on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return byte_view(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")


def tensor_of(stored: StoredTensor) -> Tensor:
    """A tensor over the stored bytes themselves: only read it. Raises DamagedError."""
    dtype = dtype_named(stored.dtype)
    if not stored.data.nbytes:
        return torch.zeros(stored.shape, dtype=dtype)
    return byte_tensor(stored.data).view(dtype).view(stored.shape)


def stored_of(tensor: Tensor) -> StoredTensor:
    """The tensor as stored bytes; like `raw_bytes`, a view where it can be."""
    return StoredTensor(dtype_name(tensor.dtype), tuple(tensor.shape), raw_bytes(tensor))


def pack_tensors(tensors: Mapping[str, Tensor]) -> memoryview:
    """The tensors as one safetensors buffer of its own: a copy, each byte copied once.

    Wider dtypes come first, names in order within, as the library writes them.
    """
    header, spans = _lay_out(tensors)
    start = len(header)
    # numpy asks for huge pages, and does not clear them: five times as fast as a bytearray.
    data = np.empty(start + max((end for _, end in spans.values()), default=0), dtype=np.uint8)
    data[:start] = np.frombuffer(header, dtype=np.uint8)
    for name, (begin, end) in spans.items():
        if end > begin:
            tensor = tensors[name].detach()
            target = torch.from_numpy(data[start + begin : start + end])
            target.view(tensor.dtype).view(tensor.shape).copy_(tensor)
    return data.data


def tensor_parts(tensors: Mapping[str, Tensor]) -> list[Buffer]:
    """What `pack_tensors` gives, as buffers that follow each other: the header, then `raw_bytes` of each tensor."""
    header, spans = _lay_out(tensors)
    return [header, *(raw_bytes(tensors[name]) for name in spans)]


def _lay_out(tensors: Mapping[str, Tensor]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """The header with its length, and each tensor's place in the data after it, in that order."""
    header: dict[str, Json] = {}
    spans: dict[str, tuple[int, int]] = {}
    position = 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name.encode())):
        tensor = tensors[name]
        spans[name] = (position, position + tensor.numel() * tensor.element_size())
        position = spans[name][1]
        header[name] = {
            "dtype": dtype_name(tensor.dtype),
            "shape": list(tensor.shape),
            "data_offsets": list(spans[name]),
        }
    text = canonical_json(header)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, spans


def unpack_tensors(data: Buffer) -> dict[str, StoredTensor]:
    """The tensors of a safetensors buffer as views of it, in the order of their bytes.

    Strict: the data must be described whole, once, without gaps. Raises DamagedError.
    """
    view = byte_view(data)
    length = int.from_bytes(view[:8], "little")
    if view.nbytes < 8 or length > min(view.nbytes - 8, _HEADER_LIMIT_BYTES):
        raise DamagedError(f"these {view.nbytes} bytes are not in the safetensors format")
    body = view[8 + length :]
    try:
        header: dict[str, Any] = json.loads(bytes(view[8 : 8 + length]))
        header.pop("__metadata__", None)
        items = sorted(header.items(), key=lambda item: (item[1]["data_offsets"], item[0]))
        return _check_spans(items, body)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedError(f"a safetensors header cannot be read: {error}") from error


def _check_spans(items: list[tuple[str, Any]], body: memoryview) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    position = 0
    for name, described in items:
        begin, end = described["data_offsets"]
        shape = tuple(described["shape"])
        if not all(type(n) is int and n >= 0 for n in (begin, end, *shape)):
            raise ValueError(f"{name!r} has offsets or dimensions that are not counts")
        size = prod(shape) * dtype_named(described["dtype"]).itemsize
        if begin != position or end != begin + size or end > body.nbytes:
            raise ValueError(f"{name!r} lies at {begin}..{end}, which does not fit")
        tensors[name] = StoredTensor(described["dtype"], shape, body[begin:end])
        position = end
    if position != body.nbytes:
        raise ValueError(f"{body.nbytes - position} bytes at the end belong to no tensor")
    return tensors
