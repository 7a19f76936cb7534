"""The header before each message: its bytes are fixed, and only the one due is believed."""

from __future__ import annotations

import pytest

from openclaw_tasks.collectives.frames import HEADER_BYTES, OutOfStepError, checked_length, frame_header


def test_header_bytes_are_as_documented() -> None:
    header = frame_header(generation=7, exchange=3, message=2, length=1024)
    assert len(header) == HEADER_BYTES == 24
    assert header.hex() == "4f436d310700000002000000030000000004000000000000"


def test_header_due_gives_the_length() -> None:
    assert checked_length(frame_header(7, 3, 2, 12345678901), 7, 3, 2) == 12345678901


def test_generation_is_compared_modulo_two_to_the_32() -> None:
    assert checked_length(frame_header(2**32 + 5, 0, 0, 1), 2**32 + 5, 0, 0) == 1


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"GET / HTTP/1.1\r\nHost: x", "where a message header was due"),
        (frame_header(6, 3, 2, 10), "generation 6 in generation 7"),
        (frame_header(7, 4, 2, 10), "message 2 of exchange 4 where message 2 of exchange 3"),
        (frame_header(7, 3, 1, 10), "message 1 of exchange 3 where message 2 of exchange 3"),
    ],
)
def test_any_other_header_is_out_of_step(header: bytes, says: str) -> None:
    with pytest.raises(OutOfStepError, match=says):
        checked_length(header.ljust(HEADER_BYTES, b" ")[:HEADER_BYTES], 7, 3, 2)
