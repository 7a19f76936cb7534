"""Codecs: a flat float32 gradient as the bytes that a record holds, and back.

Training consumes `decode(encode(gradient))`, never the gradient itself, so that any codec, however
lossy, is exact for recovery. Two rules make a record's bytes a pure function of the gradient:
encoding looks only at blocks that `ALIGNMENT` is a multiple of (slices cut there and joined equal the
whole), and a scale is rounded to its stored form *before* it is used.

A value that is not finite decodes to one that is not finite, so that a check of the decoded gradient
sees it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from openclaw_tasks.errors import JobError
from openclaw_tasks.exact.layout import ALIGNMENT
from openclaw_tasks.exact.record import Buffer
from openclaw_tasks.exact.tensor_bytes import byte_tensor

_CHUNK_ELEMENTS = 512 * 1024
"""Elements encoded at a time: temporaries of 2 MiB stay in the cache, and calls cost little."""


class Codec(Protocol):
    """Encodes one-dimensional contiguous float32 tensors whose length is a multiple of `ALIGNMENT`."""

    @property
    def name(self) -> str:
        """As in the job file and in records."""

    def encoded_bytes(self, numel: int) -> int:
        """The exact size of `numel` encoded elements; additive over slices."""

    def encode(self, values: Tensor, out: Buffer) -> None:
        """Fill `out`, writable and of exactly `encoded_bytes(values.numel())` bytes."""

    def decode(self, data: Buffer, out: Tensor) -> None:
        """Fill the float32 tensor `out` from `data`, of exactly `encoded_bytes(out.numel())` bytes."""


def codec_named(name: str) -> Codec:
    """The codec of that name. Raises JobError, which names those there are."""
    codec = _CODECS.get(name)
    if codec is None:
        raise JobError(f"codec={name!r} is not one of {', '.join(sorted(_CODECS))}")
    return codec


def _check(values: Tensor, encoded: Tensor, size_bytes: int) -> None:
    assert values.dtype == torch.float32
    assert values.dim() == 1
    assert values.is_contiguous()
    assert values.numel() % ALIGNMENT == 0, "slices are cut at multiples of ALIGNMENT"
    assert encoded.numel() == size_bytes, f"{encoded.numel()} bytes given, {size_bytes} needed"


def _zero_non_finite(values: Tensor) -> Tensor:
    """What casting such a value to an integer gives differs between machines."""
    return torch.where(torch.isfinite(values), values, 0)


class _CastCodec:
    """Each element cast to a narrower (or the same) floating type, rounding to nearest even.

    Which NaN a NaN becomes is not promised: a step with one is skipped, and holds no payload.
    """

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.name = name
        self._dtype = dtype

    def encoded_bytes(self, numel: int) -> int:
        return numel * self._dtype.itemsize

    def encode(self, values: Tensor, out: Buffer) -> None:
        target = byte_tensor(out)
        _check(values, target, self.encoded_bytes(values.numel()))
        target.view(self._dtype).copy_(values)

    def decode(self, data: Buffer, out: Tensor) -> None:
        source = byte_tensor(data)
        _check(out, source, self.encoded_bytes(out.numel()))
        out.copy_(source.view(self._dtype))


class _Int8Codec:
    """Blocks of 128: a bfloat16 scale, then 128 int8 multiples of it, interleaved (130 bytes a block).

    The scale is the block's largest magnitude / 127, rounded *up* to bfloat16, so that no multiple
    exceeds 127. It is 0, and so is the block, below the smallest normal float32: its reciprocal would
    overflow, and no bit may depend on a thread's denormal mode. A block with a value that is not
    finite has a NaN scale and decodes to NaN throughout.
    """

    name = "int8"
    _block = 128
    _stride = 130
    _smallest_scale = torch.finfo(torch.float32).tiny

    def encoded_bytes(self, numel: int) -> int:
        return numel // self._block * self._stride

    def _chunks(self, values: Tensor, blocks: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(values [blocks, 128], int8 [blocks, 128], bfloat16 scale [blocks, 1]) of cache-sized runs."""
        count = _CHUNK_ELEMENTS // self._block
        rows = blocks.view(-1, self._stride)
        multiples, scales = rows[:, 2:].view(torch.int8), rows[:, :2].view(torch.bfloat16)
        return zip(
            values.view(-1, self._block).split(count),
            multiples.split(count),
            scales.split(count),
            strict=True,
        )

    def encode(self, values: Tensor, out: Buffer) -> None:
        target = byte_tensor(out)
        _check(values, target, self.encoded_bytes(values.numel()))
        if not values.numel():
            return
        blocks = target if values.device.type == "cpu" else torch.empty_like(target, device=values.device)
        scratch = torch.empty(min(values.numel(), _CHUNK_ELEMENTS), device=values.device)
        for chunk, multiples, scales in self._chunks(values, blocks):
            work = scratch[: chunk.numel()].view(chunk.shape)
            scale = self._scale(torch.amax(torch.abs(chunk, out=work), dim=1, keepdim=True))
            inverse = torch.where(scale > 0, 1 / scale, 0)
            finite = chunk if math.isfinite(float(scale.sum())) else _zero_non_finite(chunk)
            multiples.copy_(torch.mul(finite, inverse, out=work).round_())
            scales.view(torch.int16).copy_(scale.view(torch.int32) >> 16)
        if blocks is not target:
            target.copy_(blocks)

    def _scale(self, largest: Tensor) -> Tensor:
        """Float32 scales that bfloat16 holds exactly, from each block's largest magnitude."""
        scale = largest / 127
        bits = scale.view(torch.int32)
        rounded_up = bits.add(0xFFFF).bitwise_and_(~0xFFFF).view(torch.float32)
        rounded_up.masked_fill_(scale < self._smallest_scale, 0)
        return rounded_up.masked_fill_(~torch.isfinite(scale), math.nan)

    def decode(self, data: Buffer, out: Tensor) -> None:
        source = byte_tensor(data)
        _check(out, source, self.encoded_bytes(out.numel()))
        if not out.numel():
            return
        for chunk, multiples, scales in self._chunks(out, source.to(out.device)):
            chunk.copy_(multiples).mul_(scales.to(torch.float32))


_CODECS: dict[str, Codec] = {
    "exact": _CastCodec("exact", torch.float32),
    "bf16": _CastCodec("bf16", torch.bfloat16),
    "int8": _Int8Codec(),
}
