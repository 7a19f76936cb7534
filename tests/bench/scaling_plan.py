"""Who owns what among the ranks of `scaling`, and the bytes that each must send for it."""

from __future__ import annotations

from itertools import pairwise

FLOAT32_BYTES = 4


def runs_of(shards: int, ranks: int) -> tuple[tuple[int, int], ...]:
    """Near equal runs of shards, in rank order."""
    return tuple(pairwise([shards * rank // ranks for rank in range(ranks + 1)]))


def sent_bytes(numel: int, shards: int, ranks: int, rank: int, encoded_bytes_each: int) -> int:
    """What topology `direct` promises that a rank sends: of each subtree sum that it holds every peer's slice, and its
    own encoded slice to every peer."""
    from openclaw_tasks.collectives.topology import ExchangePlan
    from openclaw_tasks.exact.layout import FlatLayout

    slices = FlatLayout((), numel).slices(ranks)
    plan = ExchangePlan(rank, runs_of(shards, ranks), slices)
    mine = slices[rank][1] - slices[rank][0]
    summed = len(plan.nodes_of(rank)) * (numel - mine) * FLOAT32_BYTES
    return summed + (ranks - 1) * mine * encoded_bytes_each
