"""JSON documents that carry their own digest."""

from __future__ import annotations

import json

import pytest

from openclaw_tasks.errors import DamagedError
from openclaw_tasks.storage.digested_json import canonical_json, read_digested, write_digested

FIELDS = {"format": 1, "name": "größe", "numbers": [1, 2.5, None, True], "nested": {"b": 1, "a": {}}}


def test_fields_come_back_equal() -> None:
    assert read_digested(write_digested(FIELDS), "doc") == FIELDS


def test_the_spelling_is_canonical() -> None:
    assert canonical_json({"b": [1, 2], "a": "ö"}) == b'{"a":"\\u00f6","b":[1,2]}'


def test_every_flipped_bit_is_seen_and_the_document_named() -> None:
    data = write_digested(FIELDS)
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            with pytest.raises(DamagedError, match="lm/claim/1"):
                read_digested(flipped, "lm/claim/1")


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b'{"digest":"0"}', b"\xff", b"[" * 5000, b'{"digest":1}'])
def test_what_is_no_document_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedError):
        read_digested(data, "doc")


def test_cut_appended_respaced_and_reordered_documents_are_damaged() -> None:
    data = write_digested(FIELDS)
    respelled = json.loads(data)
    variants = [data[:-1], data + b"\n", json.dumps(respelled).encode(), data.replace(b'"format":1,', b"")]
    variants.append(canonical_json(respelled).replace(b'"format":1', b'"format":1,"format":1'))
    for variant in variants:
        with pytest.raises(DamagedError):
            read_digested(variant, "doc")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_does_not_have_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_digested({"value": value})
