"""Stripes under any code, any loss and any damage: the payload, or an error, never anything else."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.paths import GroupName
from openclaw_tasks.checkpoint.stripes import StripeIdentity, build_stripes, join_stripes, parse_stripe, rebuild
from openclaw_tasks.errors import DamagedError, DataLossError

NAME = GroupName(epoch=3, writer="w1", sequence=5, first=33, last=40, attempt=0)
IDENTITY = StripeIdentity("lm", NAME, "bf16", None)

codes = st.integers(1, 12).flatmap(lambda n: st.builds(Code, st.just(n), st.integers(0, (n - 1) // 2)))
payloads = st.one_of(
    st.binary(max_size=300),
    # Longer than one slice per stripe, and not a multiple of anything.
    st.binary(min_size=1, max_size=9).map(lambda seed: (seed * 300_000)[:300_017]),
)


@settings(deadline=None)
@given(codes, payloads, st.data())
def test_any_loss_of_up_to_m_stripes_gives_back_the_payload(code: Code, payload: bytes, data: st.DataObject) -> None:
    stripes = build_stripes(payload, code, IDENTITY)
    lost = data.draw(st.sets(st.integers(0, code.n - 1), max_size=code.m))
    files = {index: stripe for index, stripe in enumerate(stripes) if index not in lost}
    assert rebuild("lm", NAME, code, files).payload == payload


@settings(deadline=None)
@given(codes, payloads, st.data())
def test_any_loss_of_more_than_m_stripes_fails_loudly(code: Code, payload: bytes, data: st.DataObject) -> None:
    stripes = build_stripes(payload, code, IDENTITY)
    lost = data.draw(st.sets(st.integers(0, code.n - 1), min_size=code.m + 1))
    files = {index: stripe for index, stripe in enumerate(stripes) if index not in lost}
    with pytest.raises(DataLossError, match="steps 33 to 40"):
        rebuild("lm", NAME, code, files)


@settings(deadline=None)
@given(codes, st.binary(max_size=300), st.data())
def test_any_changed_bytes_in_up_to_m_stripes_are_found_and_outvoted(
    code: Code, payload: bytes, data: st.DataObject
) -> None:
    """seaweedfs/seaweedfs#7832: erasure decoding by itself accepts a rotten stripe."""
    stripes = build_stripes(payload, code, IDENTITY)
    rotten = data.draw(st.sets(st.integers(0, code.n - 1), max_size=code.m))
    files = dict(enumerate(stripes))
    for index in rotten:
        changed = bytearray(stripes[index])
        changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
        files[index] = bytes(changed)
    rebuilt = rebuild("lm", NAME, code, files)
    assert rebuilt.payload == payload
    assert rebuilt.bad.keys() == rotten


@settings(deadline=None)
@given(codes, st.binary(max_size=300), st.randoms(use_true_random=False))
def test_swapped_stripes_are_refused_by_their_names(code: Code, payload: bytes, random: Random) -> None:
    stripes = build_stripes(payload, code, IDENTITY)
    places = list(range(code.n))
    random.shuffle(places)
    right = [index for index, place in enumerate(places) if index == place]
    files = {index: stripes[place] for index, place in enumerate(places)}
    if len(right) < code.k:
        with pytest.raises(DataLossError):
            rebuild("lm", NAME, code, files)
    else:
        rebuilt = rebuild("lm", NAME, code, files)
        assert rebuilt.payload == payload
        assert rebuilt.bad.keys() == set(places) - set(right)


@settings(deadline=None)
@given(codes, st.binary(max_size=300), st.data())
def test_repeated_stripes_never_count_twice_and_never_hang(code: Code, payload: bytes, data: st.DataObject) -> None:
    """zfec.Decoder loops for ever on a repeated number."""
    stripes = build_stripes(payload, code, IDENTITY)
    numbers = data.draw(st.lists(st.integers(0, code.n - 1), min_size=1, max_size=2 * code.n))
    given_stripes = [parse_stripe(stripes[number], NAME.key("lm", number), code) for number in numbers]
    if len(set(numbers)) < code.k:
        with pytest.raises(DataLossError):
            join_stripes(given_stripes)
    else:
        assert join_stripes(given_stripes) == payload


@settings(deadline=None)
@given(codes, st.binary(min_size=1, max_size=300), st.data())
def test_attempts_never_mix(code: Code, payload: bytes, data: st.DataObject) -> None:
    """Two putters of one group: their stripes rebuild one of the two payloads or none."""
    second_name = replace(NAME, attempt=1)
    first = build_stripes(payload, code, IDENTITY)
    second = build_stripes(payload[::-1], code, replace(IDENTITY, name=second_name))
    taken = data.draw(st.lists(st.booleans(), min_size=code.n, max_size=code.n))
    mixed = [
        parse_stripe(second[index], second_name.key("lm", index), code)
        if is_second
        else parse_stripe(first[index], NAME.key("lm", index), code)
        for index, is_second in enumerate(taken)
    ]
    if len(set(taken)) == 2:
        with pytest.raises(DamagedError, match="different payloads"):
            join_stripes(mixed)
    else:
        assert join_stripes(mixed) == (payload[::-1] if taken[0] else payload)


@settings(deadline=None)
@given(codes, payloads)
def test_a_repair_is_bit_identical(code: Code, payload: bytes) -> None:
    stripes = build_stripes(payload, code, IDENTITY)
    rebuilt = rebuild("lm", NAME, code, {index: stripes[index] for index in range(code.m, code.n)})
    assert build_stripes(rebuilt.payload, code, rebuilt.header.identity) == stripes
