"""The step that is being computed: what this rank has of it, kept until the group has applied it.

When a member dies in the middle, the step is done again by the others. What a survivor had computed of it stays
valid, since a shard's gradient depends on (seed, step, shard) alone; only the lost shards are computed anew.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from openclaw_tasks.exact.canonical import Node, tree_nodes
from openclaw_tasks.exact.record import BufferChange
from openclaw_tasks.training.compute import ShardResult
from openclaw_tasks.training.facts import ShardFacts


class OpenStep:
    """Subtree sums of shard gradients of one step; `step` is the one after the last applied."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.facts: dict[int, ShardFacts] = {}
        self.buffers: tuple[BufferChange, ...] = ()
        self._sums: dict[Node, torch.Tensor] = {}

    def nodes(self, run: tuple[int, int], compute: Callable[[int], ShardResult]) -> dict[Node, torch.Tensor]:
        """The largest subtrees of the run of shards `[lo, hi)`, computing what is missing shard by shard.

        Sums as it goes, so that at most one buffer for each level of the tree is alive, not one for each shard.
        """
        return {node: self._sum(node, compute) for node in tree_nodes(*run)}

    def _sum(self, node: Node, compute: Callable[[int], ShardResult]) -> torch.Tensor:
        known = self._sums.get(node)
        if known is not None:
            return known
        lo, size = node
        if size == 1:
            total: torch.Tensor = self._shard(lo, compute)
        else:
            half = size // 2
            total = self._sum((lo, half), compute)
            total.add_(self._sum((lo + half, half), compute))
            del self._sums[lo, half], self._sums[lo + half, half]
        self._sums[node] = total
        return total

    def _shard(self, shard: int, compute: Callable[[int], ShardResult]) -> torch.Tensor:
        result = compute(shard)
        self.facts[shard] = ShardFacts(result.loss, result.items, result.present_bits)
        if shard == 0:
            self.buffers = result.changed_buffers
        return result.gradient
