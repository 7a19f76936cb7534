"""Owner maps: contiguous runs that cover all shards, whoever is lost."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
from hypothesis import given

from openclaw_tasks.recovery.owners import Runs, equal_split, hand_over

SHARDS = st.sampled_from([1, 2, 4, 8, 16, 64])


@st.composite
def maps_and_losses(draw: st.DrawFn) -> tuple[Runs, set[int]]:
    """Any map (also lopsided ones, with empty runs) and any set of lost ranks that leaves somebody."""
    shards, ranks = draw(SHARDS), draw(st.integers(1, 9))
    cuts = sorted(draw(st.lists(st.integers(0, shards), min_size=ranks - 1, max_size=ranks - 1)))
    runs = tuple(itertools.pairwise([0, *cuts, shards]))
    survivors = draw(st.sets(st.integers(0, ranks - 1), min_size=1))
    return runs, set(range(ranks)) - survivors


def covers(runs: Runs, shards: int) -> bool:
    """Contiguous, in order, from 0 to the end."""
    ends = [0, *(hi for _, hi in runs)]
    return all(lo == end and lo <= hi for (lo, hi), end in zip(runs, ends, strict=False)) and ends[-1] == shards


def load(run: tuple[int, int]) -> int:
    return run[1] - run[0]


@given(SHARDS, st.integers(1, 80))
def test_an_equal_split_covers_all_shards_with_loads_that_differ_by_one_at_most(shards: int, ranks: int) -> None:
    runs = equal_split(shards, ranks)

    assert len(runs) == ranks
    assert covers(runs, shards)
    assert max(map(load, runs)) - min(map(load, runs)) <= 1


@given(maps_and_losses())
def test_survivors_keep_all_they_had_and_the_new_map_covers_all_shards(case: tuple[Runs, set[int]]) -> None:
    runs, lost = case
    kept = [run for rank, run in enumerate(runs) if rank not in lost]

    new = hand_over(runs, lost)

    assert len(new) == len(kept)
    assert covers(new, runs[-1][1])
    for before, after in zip(kept, new, strict=True):
        assert load(before) == 0 or (after[0] <= before[0] and before[1] <= after[1])


@given(maps_and_losses())
def test_what_was_lost_goes_to_the_nearest_survivors_so_that_the_larger_load_is_smallest(
    case: tuple[Runs, set[int]],
) -> None:
    """From left to right: each gap is cut where the larger of the loads of its two neighbours is smallest."""
    runs, lost = case
    living = [rank for rank in range(len(runs)) if rank not in lost]

    new = hand_over(runs, lost)

    for place, (left, right) in enumerate(itertools.pairwise(living)):
        start, end = new[place]
        gap_start, gap_end = runs[left][1], runs[right][0]
        assert gap_start <= end <= gap_end
        larger = [max(cut - start, runs[right][1] - cut) for cut in range(gap_start, gap_end + 1)]
        assert larger[end - gap_start] == min(larger)


@given(maps_and_losses())
def test_nobody_lost_means_nothing_changes(case: tuple[Runs, set[int]]) -> None:
    runs, _ = case

    assert hand_over(runs, set()) == runs
