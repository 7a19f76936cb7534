"""Stripes: a payload cut and coded so that any k of n rebuild it, each describing itself.

Nothing is decoded before everything about it is checked. zfec checks none of its arguments: a flipped byte
or a wrong number decodes to garbage in silence (seaweedfs/seaweedfs#7832), a repeated number loops for ever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import zfec

from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.paths import StripedName
from openclaw_tasks.checkpoint.stripe_header import StripeHeader, StripeIdentity, split_head
from openclaw_tasks.errors import DamagedError, DataLossError
from openclaw_tasks.storage.store import Buffer

__all__ = [
    "Rebuilt",
    "Stripe",
    "StripeHeader",
    "StripeIdentity",
    "build_stripes",
    "join_stripes",
    "parse_stripe",
    "rebuild",
    "stored_bytes",
]

_NO_DIGEST = "0" * 64
_SLICE_BYTES = 64 * 1024
"""zfec is fastest where the slices of all stripes fit the cache together: 64 to 256 KiB."""


@dataclass(frozen=True, slots=True)
class Stripe:
    """A stripe whose header and data have been checked; only `parse_stripe` and `rebuild` make them."""

    header: StripeHeader
    data: memoryview


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A payload rebuilt from stripes, and what was wrong with those that could not serve."""

    payload: bytes
    header: StripeHeader
    """As of stripe 0; `header.identity` is what a repair gives to `build_stripes`."""
    bad: dict[int, str]
    """By stripe index, of those that were asked for: why it counts as missing."""


def build_stripes(
    payload: Buffer, code: Code, identity: StripeIdentity, payload_digest: str | None = None
) -> list[bytearray]:
    """The n stripe files of `payload`, by index. A pure function: a repair gives back the very same bytes.

    `payload_digest`: its SHA-256 in hexadecimal, if the caller knows it.
    """
    view = memoryview(payload).cast("B")
    # Made where they are to stand, so that no large payload is held twice: a header's length is known before it is.
    blank = StripeHeader(identity, code, 0, len(view), _NO_DIGEST, (_NO_DIGEST,) * code.n)
    starts = [len(replace(blank, index=index).to_bytes()) for index in range(code.n)]
    files = [bytearray(start + blank.stripe_bytes) for start in starts]
    data = [memoryview(file)[start:] for file, start in zip(files, starts, strict=True)]
    for index in range(code.k):
        block = view[index * blank.stripe_bytes : (index + 1) * blank.stripe_bytes]
        data[index][: len(block)] = block
    _encode_parity(data, code)
    digests = tuple(_digest(stripe) for stripe in data)
    header = replace(blank, payload_digest=payload_digest or _digest(view), stripe_digests=digests)
    for index, (file, start) in enumerate(zip(files, starts, strict=True)):
        head = replace(header, index=index).to_bytes()
        assert len(head) == start, (len(head), start)
        memoryview(file)[:start] = head
    return files


def stored_bytes(stripes: Sequence[Buffer], code: Code, payload: Buffer) -> int:
    """What a payload costs without its redundancy: itself, and the headers of its k data stripes."""
    stripe_bytes = -(-len(payload) // code.k)
    return len(payload) + sum(len(stripe) - stripe_bytes for stripe in stripes[: code.k])


def parse_stripe(data: Buffer, key: str, code: Code) -> Stripe:
    """The stripe read under `key`, in a run that uses `code`. Its data are a view of `data`.

    DamagedError when any byte is not as it was written, or when it is another stripe than `key` says.
    UsageError when it is whole, but of a format or envelope that this version does not know.
    """
    try:
        return _parse(data, key, code)
    except DamagedError as error:
        raise DamagedError(f"{key}: {error}") from error


def join_stripes(stripes: Sequence[Stripe]) -> bytes:
    """The payload, from at least k stripes of one attempt with different indices.

    DataLossError when fewer are given; DamagedError when they disagree about what they are parts of, or when
    what comes out does not match its digest. The same stripe given twice counts once.
    """
    if not stripes:
        raise DataLossError("no stripe is left to rebuild from")
    header = stripes[0].header
    what = header.identity.describe()
    for stripe in stripes:
        if replace(stripe.header, index=header.index) != header:
            raise DamagedError(f"{what}: {header.key} and {stripe.header.key} are parts of different payloads")
    by_index = {stripe.header.index: stripe.data for stripe in stripes}
    if len(by_index) < header.code.k:
        found = ", ".join(str(index) for index in sorted(by_index))
        raise DataLossError(f"{what}: {header.code.k} stripes are needed, only {found} can be used")
    blocks = _decode(by_index, header.code, header.stripe_bytes)
    payload = b"".join(
        block[: max(0, header.payload_bytes - position * header.stripe_bytes)] for position, block in enumerate(blocks)
    )
    if _digest(payload) != header.payload_digest:
        raise DamagedError(f"{what}: its stripes are whole, but what they rebuild does not match its digest")
    return payload


def rebuild(run: str, name: StripedName, code: Code, files: Mapping[int, Buffer | str]) -> Rebuilt:
    """The payload of `name`, from what was read: stripe index -> its bytes, or why there are none.

    DataLossError naming run, steps, and what is wrong with each stripe, when fewer than k can serve.
    UsageError as `parse_stripe`.
    """
    versions: dict[StripeHeader, list[Stripe]] = {}
    bad: dict[int, str] = {}
    for index, found in sorted(files.items()):
        if isinstance(found, str):
            bad[index] = found
            continue
        try:
            stripe = _parse(found, name.key(run, index), code)
        except DamagedError as error:
            bad[index] = str(error)
        else:
            versions.setdefault(replace(stripe.header, index=0), []).append(stripe)
    header, best = max(versions.items(), key=lambda item: len(item[1]), default=(None, []))
    for stripes in versions.values():
        if stripes is not best:
            bad.update((stripe.header.index, "part of another payload under this name") for stripe in stripes)
    if header is None or len(best) < code.k:
        absent = {index: "not found" for index in range(code.n) if index not in files}
        reasons = "; ".join(f"stripe {index}: {why}" for index, why in sorted({**absent, **bad}.items()))
        raise DataLossError(
            f"run {run!r}, {name.describe()}: {code.k} of {code.n} stripes are needed, "
            f"{len(best)} can be used; {reasons}"
        )
    return Rebuilt(join_stripes(best), header, bad)


def _parse(data: Buffer, key: str, code: Code) -> Stripe:
    header, content = split_head(memoryview(data).cast("B").toreadonly(), key, code)
    if len(content) != header.stripe_bytes:
        raise DamagedError(f"has {len(content)} data bytes in place of {header.stripe_bytes}")
    if _digest(content) != header.stripe_digests[header.index]:
        raise DamagedError("data do not match their digest")
    return Stripe(header, content)


def _encode_parity(data: Sequence[memoryview], code: Code) -> None:
    """Fill in the m parity stripes, which follow the k data stripes."""
    if code.m == 0:
        return
    encoder = zfec.Encoder(code.k, code.n)
    wanted = list(range(code.k, code.n))
    for start in range(0, len(data[0]), _SLICE_BYTES):
        part = slice(start, start + _SLICE_BYTES)
        for stripe, parity in zip(
            data[code.k :], encoder.encode([d[part] for d in data[: code.k]], wanted), strict=True
        ):
            stripe[part] = parity


def _decode(data: Mapping[int, memoryview], code: Code, stripe_bytes: int) -> list[Buffer]:
    """The k data blocks, from at least k stripes by index."""
    missing = [index for index in range(code.k) if index not in data]
    spare = [index for index in sorted(data) if index >= code.k]
    # zfec wants each data stripe in its own place, and would move misplaced ones in the caller's list.
    picks = [index if index in data else spare.pop(0) for index in range(code.k)]
    assert len(set(picks)) == code.k, picks
    assert all(0 <= index < code.n and len(data[index]) == stripe_bytes for index in picks), picks
    rebuilt: dict[int, list[Buffer]] = {index: [] for index in missing}
    if missing:
        decoder = zfec.Decoder(code.k, code.n)
        for start in range(0, stripe_bytes, _SLICE_BYTES):
            parts = decoder.decode([data[index][start : start + _SLICE_BYTES] for index in picks], list(picks))
            for index in missing:
                rebuilt[index].append(parts[index])
    return [b"".join(rebuilt[index]) if index in rebuilt else data[index] for index in range(code.k)]


def _digest(*parts: Buffer) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
