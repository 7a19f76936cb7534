"""Packing is lossless and refuses what it did not pack."""

from __future__ import annotations

import numpy as np
import pytest

from openclaw_tasks.checkpoint.pack import (
    PLANE_BYTES,
    pack_group,
    pack_object,
    planes_of_codec,
    unpack_group,
    unpack_object,
)
from openclaw_tasks.errors import DamagedError, UsageError


def gradient_like(numel: int) -> bytes:
    """bf16 bytes of values as gradients have them: many sizes, random digits."""
    generator = np.random.default_rng(5)
    values = (generator.standard_normal(numel) * generator.random(numel) * 1e-3).astype(np.float32)
    return values.view(np.uint16)[1::2].tobytes()


@pytest.mark.parametrize("planes", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [0, 1, 3, 7, 8, 4 * PLANE_BYTES, 4 * PLANE_BYTES + 5])
def test_an_object_comes_back_whatever_its_size(planes: int, size: int) -> None:
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    assert unpack_object(pack_object(data, planes=planes)) == data


@pytest.mark.parametrize("planes", [1, 2, 4])
def test_records_come_back_in_order_and_of_their_lengths(planes: int) -> None:
    records = [b"", b"one", memoryview(b"a" * 300_001), bytearray(b"three"), b""]
    assert unpack_group(pack_group(records, planes=planes)) == [bytes(record) for record in records]


def test_a_group_of_no_records_comes_back() -> None:
    assert unpack_group(pack_group([], planes=2)) == []


def test_planes_make_numbers_smaller() -> None:
    data = gradient_like(200_000)
    assert len(pack_object(data, planes=2)) < 0.95 * len(pack_object(data, planes=1))
    assert len(pack_object(data, planes=2)) < 0.8 * len(data)


def test_each_codec_has_the_planes_of_its_number_size() -> None:
    assert [planes_of_codec(codec) for codec in ("bf16", "exact", "int8", "later")] == [2, 4, 1, 1]


def test_a_payload_cut_anywhere_is_damaged() -> None:
    payload = pack_group([b"some", b"records" * 10], planes=2)
    for length in range(len(payload)):
        with pytest.raises(DamagedError):
            unpack_group(payload[:length])


def test_bytes_behind_a_payload_are_damage() -> None:
    with pytest.raises(DamagedError):
        unpack_group(pack_group([b"some"], planes=2) + b"\0")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"lengths":[4]', b'"lengths":[5]'),
        (b'"lengths":[4]', b'"lengths":[]'),
        (b'"lengths":[4]', b'"lengths":4'),
        (b'"lengths":[4]', b'"lengths":[-4]'),
        (b'"planes":2', b'"planes":0'),
        (b'"planes":2', b'"planes":null'),
        (b'"format":1', b'"formal":1'),
        (b"OCPACKED", b"OCSTRIPE"),
    ],
)
def test_a_header_that_cannot_be_is_damage(old: bytes, new: bytes) -> None:
    payload = pack_group([b"some"], planes=2)
    header_bytes = len(payload[12:]) - len(payload[12:].split(b"}", 1)[1])
    changed = payload[:12].replace(old, new) + payload[12:].replace(old, new)
    length = header_bytes + len(changed) - len(payload)
    with pytest.raises(DamagedError):
        unpack_group(changed[:8] + length.to_bytes(4, "little") + changed[12:])


def test_a_later_format_asks_for_an_upgrade() -> None:
    with pytest.raises(UsageError, match=r"format 2.*upgrade"):
        unpack_group(pack_group([b"some"], planes=2).replace(b'"format":1', b'"format":2'))


def test_a_group_is_no_object() -> None:
    with pytest.raises(DamagedError, match="2 records"):
        unpack_object(pack_group([b"a", b"b"], planes=1))
