"""The step that is open: computed once, gone on with after any interruption, to the same bits."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from openclaw_tasks.exact.canonical import canonical_sum, fold, tree_nodes
from openclaw_tasks.exact.record import BufferChange
from openclaw_tasks.training.compute import ShardResult
from openclaw_tasks.training.open_step import OpenStep

NUMEL = 33


class Interrupted(Exception):
    pass


class Computer:
    """Shards whose sum depends on the order of additions; counts what it computes, and may be interrupted."""

    def __init__(self, breaks: list[int] | None = None) -> None:
        self.computed: list[int] = []
        self._breaks = list(breaks or [])
        self._calls = 0

    def __call__(self, shard: int) -> ShardResult:
        self._calls += 1
        if self._calls in self._breaks:
            raise Interrupted
        self.computed.append(shard)
        change = BufferChange("seen", "I64", (1,), shard.to_bytes(8, "little"))
        return ShardResult(gradient_of(shard), bytes([1 << shard % 8]), shard / 3, shard + 1, (change,))


def gradient_of(shard: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(shard)
    return torch.randn(NUMEL, generator=generator) * 10.0 ** (shard % 5 - 2)


def expected(run: tuple[int, int]) -> dict[tuple[int, int], torch.Tensor]:
    return fold({(shard, 1): gradient_of(shard) for shard in range(*run)})


def same_bits(one: dict[tuple[int, int], torch.Tensor], other: dict[tuple[int, int], torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[n].view(torch.int32), other[n].view(torch.int32)) for n in one
    )


@given(st.integers(0, 16), st.integers(0, 16))
def test_the_sums_are_those_of_the_canonical_tree(one: int, other: int) -> None:
    run = min(one, other), max(one, other)
    computer, step = Computer(), OpenStep(7)

    nodes = step.nodes(run, computer)

    assert same_bits(nodes, expected(run))
    assert computer.computed == list(range(*run))
    assert sorted(step.facts) == list(range(*run))


def test_what_is_computed_is_not_computed_again() -> None:
    computer, step = Computer(), OpenStep(7)
    first = step.nodes((2, 6), computer)

    again = step.nodes((2, 6), computer)

    assert computer.computed == [2, 3, 4, 5]
    assert all(again[node] is first[node] for node in first)


def test_a_survivor_computes_only_the_shards_it_takes_over() -> None:
    computer, step = Computer(), OpenStep(7)
    step.nodes((2, 5), computer)

    taken_over = step.nodes((0, 7), computer)

    assert sorted(computer.computed) == list(range(7))
    assert same_bits(taken_over, expected((0, 7)))


@given(st.lists(st.integers(1, 12), max_size=5, unique=True), st.data())
def test_any_interruptions_and_growing_runs_give_the_same_bits(breaks: list[int], data: st.DataObject) -> None:
    """A death interrupts between two shards; each new formation gives a survivor what it had and perhaps more."""
    computer, step = Computer(breaks), OpenStep(7)
    lo = data.draw(st.integers(0, 7))
    hi = data.draw(st.integers(lo + 1, 8))
    while True:
        try:
            nodes = step.nodes((lo, hi), computer)
            break
        except Interrupted:
            lo, hi = data.draw(st.integers(0, lo)), data.draw(st.integers(hi, 8))

    assert same_bits(nodes, expected((lo, hi)))
    assert set(range(lo, hi)) <= set(step.facts)
    assert len(computer.computed) == len(set(computer.computed)) == hi - lo


@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 8), st.integers(0, 8))
def test_a_map_that_takes_shards_away_again_costs_time_and_not_bits(a: int, b: int, c: int, d: int) -> None:
    computer, step = Computer(), OpenStep(7)
    step.nodes((min(a, b), max(a, b)), computer)

    assert same_bits(step.nodes((min(c, d), max(c, d)), computer), expected((min(c, d), max(c, d))))


def test_ranks_of_any_map_make_one_canonical_sum() -> None:
    whole = canonical_sum({(shard, 1): gradient_of(shard) for shard in range(8)}, 8)
    for cut in range(9):
        left, right = OpenStep(1), OpenStep(1)
        nodes = {n: t.clone() for n, t in left.nodes((0, cut), Computer()).items()}
        nodes |= {n: t.clone() for n, t in right.nodes((cut, 8), Computer()).items()}

        assert torch.equal(canonical_sum(nodes, 8), whole)


def test_at_most_one_buffer_a_level_of_the_tree_is_alive() -> None:
    step = OpenStep(1)
    alive: list[int] = []

    def compute(shard: int) -> ShardResult:
        alive.append(len(step._sums))
        return Computer()(shard)

    step.nodes((0, 64), compute)

    assert max(alive) <= 6
    assert list(step._sums) == tree_nodes(0, 64)


def test_the_buffers_of_the_step_are_those_of_shard_0() -> None:
    computer, step = Computer(), OpenStep(7)
    step.nodes((2, 4), computer)
    assert step.buffers == ()

    step.nodes((0, 4), computer)

    assert step.buffers == (BufferChange("seen", "I64", (1,), bytes(8)),)


def test_facts_are_kept_by_shard() -> None:
    step = OpenStep(7)
    step.nodes((3, 5), Computer())

    assert step.facts[4].items == 5
    assert step.facts[4].loss == 4 / 3
    assert step.facts[4].present == bytes([16])


def test_an_error_of_the_users_code_leaves_what_was_computed() -> None:
    computer, step = Computer(breaks=[3]), OpenStep(7)
    with pytest.raises(Interrupted):
        step.nodes((0, 4), computer)

    assert step.nodes((0, 4), computer).keys() == {(0, 4)}
    assert computer.computed == [0, 1, 2, 3]
