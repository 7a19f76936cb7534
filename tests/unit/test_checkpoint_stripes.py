"""Stripes: any k rebuild the payload, and nothing damaged, foreign or repeated is ever decoded."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from itertools import combinations

import pytest

from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.paths import BaseName, GroupName, ObjectName
from openclaw_tasks.checkpoint.stripes import (
    StripeIdentity,
    build_stripes,
    join_stripes,
    parse_stripe,
    rebuild,
    stored_bytes,
)
from openclaw_tasks.errors import DamagedError, DataLossError, UsageError
from openclaw_tasks.storage.digested_json import canonical_json

CODE = Code(5, 2)
NAME = GroupName(epoch=3, writer="w1", sequence=5, first=33, last=40, attempt=0)
IDENTITY = StripeIdentity("lm", NAME, "bf16", "ab" * 32)
PAYLOAD = bytes(range(256)) * 3 + b"tail"
STRIPES = build_stripes(PAYLOAD, CODE, IDENTITY)


def with_header(stripe: bytes, **changes: object) -> bytes:
    """The stripe as a writer of such a header would have written it, digest included."""
    (length,) = struct.unpack_from("<I", stripe, 8)
    fields = {**json.loads(stripe[12 : 12 + length]), **changes}
    text = canonical_json(fields)
    start = stripe[:8] + struct.pack("<I", len(text)) + text
    return start + hashlib.sha256(start).digest() + stripe[12 + length + 32 :]


def test_any_k_stripes_rebuild_the_payload() -> None:
    for chosen in combinations(range(5), 3):
        rebuilt = rebuild("lm", NAME, CODE, {index: STRIPES[index] for index in chosen})
        assert rebuilt.payload == PAYLOAD
        assert rebuilt.bad == {}


def test_fewer_than_k_stripes_are_a_loss_that_names_run_steps_and_reasons() -> None:
    torn = STRIPES[2][:-1]
    with pytest.raises(DataLossError) as error:
        rebuild("lm", NAME, CODE, {0: STRIPES[0], 1: "t1: no answer within 10 s", 2: torn, 3: STRIPES[4]})
    message = str(error.value)
    assert "run 'lm', group 5 of epoch 3 (steps 33 to 40, attempt 0): 3 of 5 stripes are needed, 1 can" in message
    assert "stripe 1: t1: no answer within 10 s; stripe 2: has 257 data bytes in place of 258" in message
    assert "stripe 3: header says index=4, but under this name it is 3; stripe 4: not found" in message
    assert "\n" not in message


def test_bad_stripes_count_as_missing_and_are_reported() -> None:
    """seaweedfs/seaweedfs#7832: a rotten stripe is found before decoding, not decoded into wrong bytes."""
    flipped = bytearray(STRIPES[1])
    flipped[-5] ^= 1
    rebuilt = rebuild("lm", NAME, CODE, dict(enumerate([STRIPES[0], flipped, *STRIPES[2:]])))
    assert rebuilt.payload == PAYLOAD
    assert rebuilt.bad == {1: "data do not match their digest"}


def test_every_flipped_bit_of_a_stripe_is_seen() -> None:
    """seaweedfs/seaweedfs#7832: no byte is believed without its digest."""
    stripe = build_stripes(b"payload", CODE, IDENTITY)[3]
    for position in range(len(stripe)):
        flipped = bytearray(stripe)
        flipped[position] ^= 1 << position % 8
        with pytest.raises(DamagedError, match=r"^lm/log/3-w1/5\.33-40\.0/3: "):
            parse_stripe(flipped, NAME.key("lm", 3), CODE)


def test_a_stripe_cut_or_continued_anywhere_is_damaged() -> None:
    stripe = build_stripes(b"payload", CODE, IDENTITY)[0]
    for length in range(len(stripe)):
        with pytest.raises(DamagedError):
            parse_stripe(stripe[:length], NAME.key("lm", 0), CODE)
    with pytest.raises(DamagedError, match="4 data bytes in place of 3"):
        parse_stripe(stripe + b"\0", NAME.key("lm", 0), CODE)


@pytest.mark.parametrize(
    "key",
    [
        NAME.key("lm", 1),
        NAME.key("other", 0),
        replace(NAME, epoch=4).key("lm", 0),
        replace(NAME, writer="w2").key("lm", 0),
        replace(NAME, sequence=6).key("lm", 0),
        replace(NAME, first=32).key("lm", 0),
        replace(NAME, last=41).key("lm", 0),
        replace(NAME, attempt=1).key("lm", 0),
        ObjectName(BaseName(40, 3, "w1"), "params", 0).key("lm", 0),
        "lm/claim/1",
        "0",
    ],
)
def test_a_stripe_under_another_name_is_refused(key: str) -> None:
    """seaweedfs/seaweedfs#7832: swapped numbers, moved files, stripes of other steps."""
    with pytest.raises(DamagedError, match=r"header says|not where a stripe can be"):
        parse_stripe(STRIPES[0], key, CODE)


def test_a_number_that_the_code_does_not_have_is_refused() -> None:
    for index in (5, 255, 10**9):
        forged = with_header(STRIPES[0], index=index)
        with pytest.raises(DamagedError, match="number"):
            parse_stripe(forged, NAME.key("lm", index), CODE)


def test_a_stripe_of_another_code_is_refused() -> None:
    with pytest.raises(DamagedError):
        parse_stripe(STRIPES[0], NAME.key("lm", 0), Code(3, 1))
    with pytest.raises(DamagedError, match="k=4"):
        parse_stripe(with_header(STRIPES[0], k=4), NAME.key("lm", 0), CODE)


@pytest.mark.parametrize(
    "changes",
    [
        {"payload_bytes": -1},
        {"payload_bytes": "772"},
        {"payload_bytes": 10**30},
        {"payload_bytes": True},
        {"stripe_bytes": 1},
        {"stripe_digests": []},
        {"stripe_digests": ["0" * 64] * 4},
        {"stripe_digests": ["0"] * 5},
        {"payload_digest": None},
        {"previous_digest": "x"},
        {"codec": 7},
        {"kind": "base"},
        {"object": "params"},
        {"extra": 1},
    ],
    ids=str,
)
def test_a_header_that_cannot_be_is_refused_whatever_its_digest(changes: dict[str, object]) -> None:
    with pytest.raises(DamagedError):
        parse_stripe(with_header(STRIPES[0], **changes), NAME.key("lm", 0), CODE)


@pytest.mark.parametrize("changes", [{"format": 2}, {"envelope": {"scheme": "aes-256-gcm"}}], ids=str)
def test_a_whole_stripe_of_a_later_version_is_not_taken_for_a_missing_one(changes: dict[str, object]) -> None:
    """A short tail may be dropped; what another version wrote must not look like one."""
    later = with_header(STRIPES[0], **changes)
    with pytest.raises(UsageError, match="upgrade"):
        parse_stripe(later, NAME.key("lm", 0), CODE)
    with pytest.raises(UsageError, match="upgrade"):
        rebuild("lm", NAME, CODE, {0: later, **dict(enumerate(STRIPES[1:4], start=1))})


def test_the_same_stripe_given_twice_counts_once_and_does_not_hang() -> None:
    """zfec loops for ever, holding the GIL, on the numbers [0, 0, 4]."""
    parsed = [parse_stripe(STRIPES[index], NAME.key("lm", index), CODE) for index in (0, 0, 4)]
    with pytest.raises(DataLossError, match="only 0, 4 can be used"):
        join_stripes(parsed)
    assert join_stripes([*parsed, parse_stripe(STRIPES[3], NAME.key("lm", 3), CODE)]) == PAYLOAD


def test_stripes_of_two_attempts_never_mix() -> None:
    other_name = replace(NAME, attempt=1)
    other = build_stripes(PAYLOAD[::-1], CODE, replace(IDENTITY, name=other_name))
    mixed = [parse_stripe(STRIPES[index], NAME.key("lm", index), CODE) for index in (0, 1)]
    mixed.append(parse_stripe(other[2], other_name.key("lm", 2), CODE))
    with pytest.raises(DamagedError, match="different payloads"):
        join_stripes(mixed)


def test_two_payloads_under_one_name_never_mix() -> None:
    """Two putters that were given the same attempt number."""
    other = build_stripes(PAYLOAD[::-1], CODE, IDENTITY)
    files = {0: other[0], 1: STRIPES[1], 2: STRIPES[2], 3: other[3], 4: STRIPES[4]}
    rebuilt = rebuild("lm", NAME, CODE, files)
    assert rebuilt.payload == PAYLOAD
    assert rebuilt.bad == dict.fromkeys((0, 3), "part of another payload under this name")
    with pytest.raises(DataLossError, match="2 can be used"):
        rebuild("lm", NAME, CODE, {0: other[0], 1: STRIPES[1], 2: STRIPES[2], 3: other[3]})


def test_the_callers_stripes_are_not_touched() -> None:
    """zfec moves misplaced data stripes in the very list that it is given."""
    parsed = [parse_stripe(STRIPES[index], NAME.key("lm", index), CODE) for index in (4, 2, 0)]
    order = list(parsed)
    assert join_stripes(parsed) == PAYLOAD
    assert parsed == order


def test_whole_stripes_that_rebuild_something_else_are_damage() -> None:
    """The last check: of what comes out."""
    forged = [with_header(stripe, payload_digest="0" * 64) for stripe in STRIPES]
    with pytest.raises(DamagedError, match="does not match its digest"):
        rebuild("lm", NAME, CODE, dict(enumerate(forged)))


def test_a_repair_writes_the_very_bytes_that_were_lost() -> None:
    rebuilt = rebuild("lm", NAME, CODE, {index: STRIPES[index] for index in (1, 3, 4)})
    assert build_stripes(rebuilt.payload, CODE, rebuilt.header.identity) == STRIPES


@pytest.mark.parametrize("code", [Code(1, 0), Code(3, 0), Code(3, 1), Code(5, 2)], ids=str)
@pytest.mark.parametrize("size", [0, 1, 2, 3, 64 * 1024, 3 * 64 * 1024 + 1])
def test_payloads_of_any_size_come_back(code: Code, size: int) -> None:
    payload = (b"0123456789abcde" * (size // 15 + 1))[:size]
    stripes = build_stripes(payload, code, IDENTITY)
    assert len(stripes) == code.n
    assert rebuild("lm", NAME, code, dict(enumerate(stripes))).payload == payload
    assert rebuild("lm", NAME, code, {i: stripes[i] for i in range(code.m, code.n)}).payload == payload


def test_a_base_object_says_so_in_its_stripes() -> None:
    name = ObjectName(BaseName(25, 3, "w1"), "params", 2)
    stripes = build_stripes(memoryview(b"weights"), Code(1, 0), StripeIdentity("lm", name, None, None))
    assert rebuild("lm", name, Code(1, 0), {0: stripes[0]}).payload == b"weights"
    with pytest.raises(DamagedError):
        parse_stripe(stripes[0], replace(name, object="buffers").key("lm", 0), Code(1, 0))


def test_stored_bytes_are_the_payload_and_the_data_stripes_headers() -> None:
    stripe_bytes = -(-len(PAYLOAD) // 3)
    headers = sum(len(stripe) - stripe_bytes for stripe in STRIPES[:3])
    assert stored_bytes(STRIPES, CODE, PAYLOAD) == len(PAYLOAD) + headers
