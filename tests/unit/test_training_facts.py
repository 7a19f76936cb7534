"""What ranks tell each other beside the gradient, and what follows from it."""

from __future__ import annotations

import math

import hypothesis.strategies as st
from hypothesis import given

from openclaw_tasks.exact.canonical import fold_scalars
from openclaw_tasks.exact.record import BufferChange
from openclaw_tasks.training.facts import (
    Decision,
    RankFacts,
    ShardFacts,
    decide,
    decode_facts,
    encode_facts,
    max_facts_bytes,
    sum_facts,
)

NO_SHARDS = RankFacts({}, finite=True, heard=0, stop=False)


def bits(facts: RankFacts) -> object:
    """Facts as what can be compared bit for bit: NaN and -0.0 too."""
    shards = {shard: (value.loss.hex(), value.items, value.present) for shard, value in facts.shards.items()}
    buffers = [(b.name, b.dtype, b.shape, bytes(b.data)) for b in facts.buffers]
    return shards, facts.finite, facts.heard, facts.stop, buffers


LOSSES = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, -0.0, math.inf, math.nan, 5e-324])
BUFFERS = st.builds(
    BufferChange,
    name=st.text(st.characters(codec="ascii"), min_size=1, max_size=80) | st.just("bn.läufer"),
    dtype=st.sampled_from(["F32", "I64"]),
    shape=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    data=st.binary(max_size=40),
)


@st.composite
def rank_facts(draw: st.DrawFn, shards: range, parameters: int) -> RankFacts:
    width = (parameters + 7) // 8
    return RankFacts(
        {
            shard: ShardFacts(
                draw(LOSSES), draw(st.integers(0, 2**62)), draw(st.binary(min_size=width, max_size=width))
            )
            for shard in shards
        },
        finite=draw(st.booleans()),
        heard=draw(st.integers(0, 10**6)),
        stop=draw(st.booleans()),
        buffers=tuple(draw(st.lists(BUFFERS, max_size=3))),
    )


@given(st.data(), st.integers(0, 8), st.integers(0, 8), st.sampled_from([1, 9, 100, 20_000]))
def test_facts_come_back_bit_for_bit_and_within_the_promised_size(
    data: st.DataObject, lo: int, num_shards: int, parameters: int
) -> None:
    facts = data.draw(rank_facts(range(lo, lo + num_shards), parameters))

    encoded = encode_facts(facts)

    assert bits(decode_facts(encoded)) == bits(facts)
    assert bits(decode_facts(bytearray(encoded))) == bits(facts)
    buffer_bytes = sum(len(b.data) for b in facts.buffers)
    assert len(encoded) <= max_facts_bytes(num_shards, parameters, buffer_bytes, len(facts.buffers))


@given(st.integers(0, 3), st.lists(LOSSES, min_size=8, max_size=8), st.data())
def test_a_steps_facts_do_not_depend_on_who_owns_which_shard(
    levels: int, losses: list[float], data: st.DataObject
) -> None:
    """pytorch/torchtitan#2206: sums over items, not means of means."""
    count = 2**levels
    shards = {shard: ShardFacts(losses[shard], 3 + shard, bytes([1 << shard % 8, shard % 2])) for shard in range(count)}
    buffers = (BufferChange("mean", "F32", (1,), b"\0\0\0\0"),)
    cut = data.draw(st.integers(0, count))
    one = RankFacts(shards, True, 0, False, buffers)
    first = RankFacts({s: shards[s] for s in range(cut)}, True, 0, False, buffers if cut else ())
    second = RankFacts({s: shards[s] for s in range(cut, count)}, True, 0, False, () if cut else buffers)

    whole, split = sum_facts([one]), sum_facts([first, second])

    assert (split.loss.hex(), split.items, split.present, split.buffers) == (
        whole.loss.hex(),
        whole.items,
        whole.present,
        buffers,
    )
    assert whole.loss.hex() == fold_scalars(losses[:count]).hex()
    assert whole.items == sum(3 + shard for shard in range(count))
    assert whole.present == bytes([2 ** min(count, 8) - 1, 1 if count > 1 else 0])


def test_a_step_is_applied_only_if_the_gradient_is_finite_on_every_rank() -> None:
    """pytorch/pytorch#90057: one rank alone never skips."""
    bad = RankFacts({}, finite=False, heard=0, stop=False)

    assert decide([NO_SHARDS, NO_SHARDS], 1).apply
    assert not decide([NO_SHARDS, bad], 1).apply


def test_the_group_stops_and_changes_only_when_every_rank_knows() -> None:
    """meta-pytorch/torchft#309: all end at the same step."""
    asked = RankFacts({}, finite=True, heard=4, stop=True)
    heard_only = RankFacts({}, finite=True, heard=4, stop=False)

    assert decide([asked, NO_SHARDS], 3) == Decision(apply=True, stop=False, next_generation=None)
    assert decide([asked, heard_only], 3) == Decision(apply=True, stop=False, next_generation=4)
    assert decide([asked, asked], 3) == Decision(apply=True, stop=True, next_generation=4)


def test_a_formation_the_group_is_in_already_is_no_change() -> None:
    facts = RankFacts({}, finite=True, heard=4, stop=False)

    assert decide([facts], 4).next_generation is None
    assert decide([facts], 5).next_generation is None


@given(
    st.lists(st.builds(RankFacts, st.just({}), st.booleans(), st.integers(0, 5), st.booleans()), min_size=1), st.data()
)
def test_every_rank_decides_alike_whatever_the_order(facts: list[RankFacts], data: st.DataObject) -> None:
    assert decide(data.draw(st.permutations(facts)), 2) == decide(facts, 2)
