"""Who computes which logical shards: one contiguous run of shards a rank, in rank order."""

from __future__ import annotations

import itertools
from collections.abc import Collection

Runs = tuple[tuple[int, int], ...]


def equal_split(shards: int, ranks: int) -> Runs:
    """`shards` over `ranks` as evenly as can be; with more ranks than shards some runs are empty."""
    cuts = (rank * shards // ranks for rank in range(ranks + 1))
    return tuple(itertools.pairwise(cuts))


def hand_over(runs: Runs, lost: Collection[int]) -> Runs:
    """The map of the survivors, in their old order, for the step that the `lost` ranks left open.

    Each survivor keeps all it had, since its gradients of the open step are computed already; what a lost rank had
    goes to its nearest living neighbours, split so that the larger of the two loads is smallest.
    """
    living = [rank for rank in range(len(runs)) if rank not in lost]
    assert living, "nobody is left to hand over to"
    result: list[tuple[int, int]] = []
    start = 0
    for left, right in zip(living, [*living[1:], None], strict=True):
        if right is None:
            end = runs[-1][1]
        else:
            gap_start, gap_end = runs[left][1], runs[right][0]
            left_load = gap_start - start
            right_load = runs[right][1] - gap_end
            even = (right_load + (gap_end - gap_start) - left_load + 1) // 2
            end = gap_start + min(max(even, 0), gap_end - gap_start)
        result.append((start, end))
        start = end
    return tuple(result)
