"""How a stripe describes itself and its sisters, and how that is written before its data.

A head is: magic, length, canonical JSON, SHA-256 of those three (FORMAT.md). The key that a stripe is read
under says most of what its header must hold, so a header is checked by writing it anew from the key.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from dataclasses import dataclass
from typing import Any, TypeGuard

from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.paths import GroupName, StripedName, parse_group_key, parse_object_key
from openclaw_tasks.errors import DamagedError, UsageError
from openclaw_tasks.storage.digested_json import canonical_json

FORMAT = 1
MAGIC = b"OCSTRIPE"
_LENGTH = struct.Struct("<I")
_PREFIX_BYTES = len(MAGIC) + _LENGTH.size
_DIGEST_BYTES = hashlib.sha256().digest_size
_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class StripeIdentity:
    """What a payload is: whose, and which attempt. All its stripes carry the same one."""

    run: str
    name: StripedName
    codec: str | None
    """The gradient codec of a group's records; None for a base object."""
    previous_digest: str | None
    """Payload digest of the group before, in this lineage; None for the first group and for base objects."""

    def key(self, index: int) -> str:
        return self.name.key(self.run, index)

    def describe(self) -> str:
        """As messages name it: run, sequence and steps, attempt."""
        return f"run {self.run!r}, {self.name.describe()}"


@dataclass(frozen=True, slots=True)
class StripeHeader:
    """One stripe's description of itself and of its sisters."""

    identity: StripeIdentity
    code: Code
    index: int
    payload_bytes: int
    payload_digest: str
    stripe_digests: tuple[str, ...]
    """SHA-256 of each of the n stripes' data, hexadecimal, by index."""

    @property
    def key(self) -> str:
        return self.identity.key(self.index)

    @property
    def stripe_bytes(self) -> int:
        """Data bytes of each stripe: the payload's k-th part, the last ones filled up with zeros."""
        return -(-self.payload_bytes // self.code.k)

    def to_bytes(self) -> bytes:
        """All that stands before the data."""
        text = canonical_json(self._fields())
        start = MAGIC + _LENGTH.pack(len(text)) + text
        return start + hashlib.sha256(start).digest()

    def _fields(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "run": self.identity.run,
            **_fields_of_name(self.identity.name),
            "codec": self.identity.codec,
            "envelope": None,
            "k": self.code.k,
            "m": self.code.m,
            "index": self.index,
            "payload_bytes": self.payload_bytes,
            "payload_digest": self.payload_digest,
            "stripe_bytes": self.stripe_bytes,
            "stripe_digests": list(self.stripe_digests),
            "previous_digest": self.identity.previous_digest,
        }


def _fields_of_name(name: StripedName) -> dict[str, Any]:
    if isinstance(name, GroupName):
        return {
            "kind": "group",
            "epoch": name.epoch,
            "writer": name.writer,
            "sequence": name.sequence,
            "first": name.first,
            "last": name.last,
            "attempt": name.attempt,
            "object": None,
        }
    return {
        "kind": "base",
        "epoch": name.base.epoch,
        "writer": name.base.writer,
        "sequence": None,
        "first": name.base.step,
        "last": name.base.step,
        "attempt": name.attempt,
        "object": name.object,
    }


def split_head(file: memoryview, key: str, code: Code) -> tuple[StripeHeader, memoryview]:
    """The checked header of a stripe file read under `key`, and its data, not yet compared with their digest.

    DamagedError (without the key, which the caller knows) and UsageError as `parse_stripe`.
    """
    text, data = _read_head(file)
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise DamagedError(f"header is not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise DamagedError("header is not a JSON object")
    _check_readable(fields, key)
    header = _header_of(fields, key, code)
    for name, expected in header._fields().items():
        if fields.get(name) != expected:
            raise DamagedError(f"header says {name}={fields.get(name)!r}, but under this name it is {expected!r}")
    if text != canonical_json(header._fields()):
        raise DamagedError("header has fields that this format does not know")
    return header, data


def _read_head(file: memoryview) -> tuple[bytes, memoryview]:
    if bytes(file[: len(MAGIC)]) != MAGIC:
        raise DamagedError("does not begin as a stripe does" if len(file) else "is empty")
    if len(file) < _PREFIX_BYTES:
        raise DamagedError("is cut short in its header")
    end = _PREFIX_BYTES + _LENGTH.unpack_from(file, len(MAGIC))[0]
    if len(file) < end + _DIGEST_BYTES:
        raise DamagedError("is cut short in its header")
    if hashlib.sha256(file[:end]).digest() != file[end : end + _DIGEST_BYTES]:
        raise DamagedError("header does not match its digest")
    return bytes(file[_PREFIX_BYTES:end]), file[end + _DIGEST_BYTES :]


def _check_readable(fields: dict[str, Any], key: str) -> None:
    """A whole header of a later version is not damage: taking it for a missing stripe would lose data."""
    if fields.get("format") != FORMAT:
        raise UsageError(f"{key}: format {fields.get('format')!r}, but this version reads {FORMAT}: upgrade")
    if fields.get("envelope") is not None:
        raise UsageError(f"{key}: sealed in an envelope that this version cannot open: upgrade")


def _header_of(fields: dict[str, Any], key: str, code: Code) -> StripeHeader:
    """The header that `key` and the fields that it does not determine ask for."""
    run = key.split("/", 1)[0]
    named = parse_group_key(run, key) or parse_object_key(run, key)
    if named is None:
        raise DamagedError("is not where a stripe can be")
    name, index = named
    if index >= code.n:
        raise DamagedError(f"has a number that a code of {code.k}+{code.m} stripes does not have")
    size, digests = fields.get("payload_bytes"), fields.get("stripe_digests")
    payload_digest, previous = fields.get("payload_digest"), fields.get("previous_digest")
    codec = fields.get("codec")
    if type(size) is not int or size < 0:
        raise DamagedError(f"header says payload_bytes={size!r}")
    if not isinstance(digests, list) or len(digests) != code.n or not all(map(_is_digest, digests)):
        raise DamagedError(f"header has not the digests of {code.n} stripes")
    if not _is_digest(payload_digest) or not (previous is None or _is_digest(previous)):
        raise DamagedError("header has a digest that is none")
    if not (codec is None or isinstance(codec, str)):
        raise DamagedError(f"header says codec={codec!r}")
    identity = StripeIdentity(run, name, codec, previous)
    return StripeHeader(identity, code, index, size, payload_digest, tuple(digests))


def _is_digest(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _HEX_DIGEST.fullmatch(value) is not None
