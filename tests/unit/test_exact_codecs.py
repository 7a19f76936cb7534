"""Each codec's stored form, checked against an independent reading of it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from openclaw_tasks.errors import JobError
from openclaw_tasks.exact.codecs import Codec, codec_named
from openclaw_tasks.exact.finite import all_finite
from openclaw_tasks.exact.layout import ALIGNMENT

NAMES = ("bf16", "exact", "int8")


def gradient(numel: int = 4 * ALIGNMENT, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = 10 ** torch.randint(-9, 3, (numel // 128, 1), generator=generator).float()
    return (torch.randn(numel // 128, 128, generator=generator) * scale).reshape(-1)


def encoded(codec: Codec, values: Tensor) -> npt.NDArray[np.uint8]:
    out = np.full(codec.encoded_bytes(values.numel()), 0xAA, dtype=np.uint8)
    codec.encode(values, out)
    return out


def decoded(codec: Codec, data: bytes | memoryview | npt.NDArray[np.uint8], numel: int) -> Tensor:
    out = torch.full((numel,), math.nan)
    codec.decode(data, out)
    return out


def as_float32(high_halves: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (high_halves.astype(np.uint32) << 16).view(np.float32)


def test_exact_stores_the_raw_float32() -> None:
    values = gradient()
    values[7] = -0.0
    codec = codec_named("exact")
    assert encoded(codec, values).tobytes() == values.numpy().tobytes()
    assert decoded(codec, encoded(codec, values), values.numel()).numpy().tobytes() == values.numpy().tobytes()


def test_bf16_rounds_to_nearest_even() -> None:
    bits = np.random.default_rng(0).integers(0, 0x7F7F0000, ALIGNMENT, dtype=np.uint32)
    bits[:4] = [0x3F808000, 0x3F818000, 0x3F808001, 0x00000001]
    expected = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    data = encoded(codec_named("bf16"), torch.from_numpy(bits.view(np.float32)))
    assert data.view(np.uint16).tolist() == expected.tolist()
    decoded_bits = decoded(codec_named("bf16"), data, ALIGNMENT).numpy()
    assert decoded_bits.tobytes() == as_float32(expected).tobytes()


def test_int8_stores_a_scale_rounded_up_and_multiples_of_that_very_scale() -> None:
    values = gradient()
    rows = encoded(codec_named("int8"), values).reshape(-1, 130)
    scales = as_float32(rows[:, :2].copy().view(np.uint16)[:, 0])
    multiples = rows[:, 2:].copy().view(np.int8)
    blocks = values.view(-1, 128)
    needed = blocks.abs().amax(dim=1).numpy() / np.float32(127)
    assert (scales >= needed).all()
    assert (scales <= needed * np.float32(1 + 2**-7)).all()
    expected = np.rint(blocks.numpy() * (np.float32(1) / scales)[:, None])
    assert (np.abs(expected) <= 127).all()
    assert multiples.tolist() == expected.astype(np.int8).tolist()
    out = decoded(codec_named("int8"), rows.tobytes(), values.numel()).numpy().reshape(-1, 128)
    assert out.tobytes() == (multiples.astype(np.float32) * scales[:, None]).tobytes()


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, -1e-38, 1.4e-36])
def test_int8_block_below_the_smallest_scale_is_all_zero(value: float) -> None:
    values = torch.zeros(ALIGNMENT)
    values[3] = value
    assert not encoded(codec_named("int8"), values).any()


@pytest.mark.parametrize("value", [3.4028234e38, -3.4028234e38, 1.6e-36, 2.0**-119])
def test_int8_keeps_the_largest_and_the_smallest_scales_finite(value: float) -> None:
    values = torch.zeros(ALIGNMENT)
    values[3] = value
    out = decoded(codec_named("int8"), encoded(codec_named("int8"), values), ALIGNMENT)
    assert out[3].item() == pytest.approx(values[3].item(), rel=0.005)
    assert out.count_nonzero() == 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_value_that_is_not_finite_stays_visible(name: str, value: float) -> None:
    values = gradient()
    values[1000] = value
    out = decoded(codec_named(name), encoded(codec_named(name), values), values.numel())
    assert not all_finite(out)
    assert not math.isfinite(out[1000].item())
    assert all_finite(out[:896])
    assert all_finite(out[1024:])


@pytest.mark.parametrize("bits", [0x7F800000, -0x800000, 0x7FC00000, 0x7FFFFFFF, -1])
def test_int8_block_that_is_not_finite_has_one_stored_form(bits: int) -> None:
    values = torch.zeros(ALIGNMENT)
    values[5] = 7.0
    values[6:7] = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
    row = encoded(codec_named("int8"), values)[:130]
    assert row[:2].tolist() == [0xC0, 0x7F]
    assert not row[2:].any()


@pytest.mark.parametrize("name", NAMES)
def test_no_elements_are_no_bytes(name: str) -> None:
    codec = codec_named(name)
    assert codec.encoded_bytes(0) == 0
    codec.encode(torch.empty(0), bytearray())
    codec.decode(b"", torch.empty(0))


@pytest.mark.parametrize("name", NAMES)
def test_any_kind_of_buffer_at_any_address_will_do(name: str) -> None:
    codec, values = codec_named(name), gradient()
    expected = encoded(codec, values).tobytes()
    room = bytearray(len(expected) + 3)
    codec.encode(values, memoryview(room)[3:])
    assert room[3:] == expected
    from_bytes = decoded(codec, expected, values.numel())
    from_odd_address = decoded(codec, memoryview(bytes(room))[3:], values.numel())
    assert from_bytes.numpy().tobytes() == from_odd_address.numpy().tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_a_buffer_of_another_size_is_refused(name: str) -> None:
    codec = codec_named(name)
    with pytest.raises(AssertionError, match="bytes given"):
        codec.encode(torch.zeros(ALIGNMENT), bytearray(codec.encoded_bytes(ALIGNMENT) + 1))
    with pytest.raises(AssertionError, match="bytes given"):
        codec.decode(bytes(codec.encoded_bytes(ALIGNMENT) - 1), torch.zeros(ALIGNMENT))


@pytest.mark.parametrize("name", NAMES)
def test_threads_do_not_change_the_bytes(name: str) -> None:
    values = gradient(300 * ALIGNMENT)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(encoded(codec_named(name), values).tobytes())
    finally:
        torch.set_num_threads(threads)
    assert len(set(results)) == 1


def test_an_unknown_codec_is_refused_with_those_there_are() -> None:
    with pytest.raises(JobError, match="codec='fp4' is not one of bf16, exact, int8"):
        codec_named("fp4")


def test_all_finite_is_not_misled_by_a_sum_that_overflows() -> None:
    assert all_finite(torch.full((1024,), 3e38))
    assert all_finite(torch.full((1024,), 6e4, dtype=torch.float16))
    assert all_finite(torch.arange(5))
    assert not all_finite(torch.tensor([math.inf, -math.inf]))
