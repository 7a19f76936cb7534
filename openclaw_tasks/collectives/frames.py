"""The 24 bytes before each message on a mesh link.

    offset  bytes  field (little-endian)
    0       4      magic "OCm1"
    4       4      generation, modulo 2^32
    8       8      tag: 2^32 * (exchanges with messages on this link and direction so far) + message's number
    16      8      length of the payload that follows

The tag makes two ranks that do not exchange the same list of messages notice at the first difference,
before a byte lands where it does not belong.
"""

from __future__ import annotations

import struct

HEADER_BYTES = 24
_HEADER = struct.Struct("<4sIQQ")
_MAGIC = b"OCm1"


class OutOfStepError(ValueError):
    """A header that is not the one due; the text says how."""


def frame_header(generation: int, exchange: int, message: int, length: int) -> bytes:
    """The header of message number `message` in a link's `exchange`-th exchange."""
    return _HEADER.pack(_MAGIC, generation & 0xFFFFFFFF, _tag(exchange, message), length)


def checked_length(header: bytes | bytearray, generation: int, exchange: int, message: int) -> int:
    """The payload's length, if this is the header due; else raises OutOfStepError."""
    magic, seen_generation, tag, length = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise OutOfStepError(f"bytes {bytes(header[:8]).hex()} where a message header was due")
    if seen_generation != generation & 0xFFFFFFFF:
        raise OutOfStepError(f"a message of generation {seen_generation} in generation {generation}")
    if tag != _tag(exchange, message):
        seen = f"message {tag & 0xFFFFFFFF} of exchange {tag >> 32}"
        raise OutOfStepError(f"{seen} where message {message} of exchange {exchange} was due")
    return int(length)


def _tag(exchange: int, message: int) -> int:
    return (exchange << 32) | message
