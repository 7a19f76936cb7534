"""Stripes: a payload cut and coded so that any k of n rebuild it, each describing itself.

A stripe file is: magic, header length, canonical JSON header, SHA-256 of those three, data (FORMAT.md).
Nothing is decoded before everything about it is checked. zfec checks none of its arguments: a flipped byte
or a wrong number decodes to garbage in silence (seaweedfs/seaweedfs#7832), a repeated number loops for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.paths import GroupName, ObjectName, StripedName
from openclaw_tasks.storage.store import Buffer

FORMAT = 1


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
    envelope: dict[str, Any] | None
    """How the payload is sealed; None: not at all. Nothing but None is read by this version."""
    payload_bytes: int
    stripe_bytes: int
    stripe_digests: tuple[str, ...]
    """SHA-256 of each of the n stripes' data, hexadecimal, by index."""
    payload_digest: str

    @property
    def key(self) -> str:
        return self.identity.key(self.index)


@dataclass(frozen=True, slots=True)
class Stripe:
    """A stripe whose header and data have been checked; only `parse_stripe` makes them."""

    header: StripeHeader
    data: memoryview


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A payload rebuilt from stripes, and what was wrong with those that could not serve."""

    payload: bytes
    header: StripeHeader
    bad: dict[int, str]
    """By stripe index: why it counts as missing. Empty: the payload is whole on every target asked."""


def build_stripes(payload: Buffer, code: Code, identity: StripeIdentity) -> list[bytes]:
    """The n stripe files of `payload`, by index. A pure function: a repair gives back the very same bytes."""
    raise NotImplementedError


def parse_stripe(data: Buffer, key: str, code: Code) -> Stripe:
    """The stripe read under `key`, in a run that uses `code`.

    DamagedError when any byte is not as it was written, or when it is another stripe than `key` says.
    UsageError when it is whole, but of a format or envelope that this version does not know.
    """
    raise NotImplementedError


def join_stripes(stripes: Sequence[Stripe]) -> bytes:
    """The payload, from at least k stripes of one attempt with different indices.

    DataLossError when fewer are given; DamagedError when they disagree about what they are parts of, or when
    what comes out does not match its digest. The same stripe given twice counts once.
    """
    raise NotImplementedError


def rebuild(run: str, name: StripedName, code: Code, files: Mapping[int, Buffer | str]) -> Rebuilt:
    """The payload of `name`, from what was read: stripe index -> its bytes, or why there are none.

    DataLossError naming run, steps, and what is wrong with each stripe, when fewer than k can serve.
    """
    raise NotImplementedError


__all__ = ["GroupName", "ObjectName", "Rebuilt", "Stripe", "StripeHeader", "StripeIdentity"]
