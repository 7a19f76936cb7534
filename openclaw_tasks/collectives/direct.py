"""All to all: each rank sends each other one the slices of its subtree sums, then its encoded slice.

One hop each way, and the fewest bytes of any canonical exchange: a rank of n sends (n - 1)/n of the gradient
per subtree node it holds, and its encoded slice n - 1 times. A run of shards that is itself a subtree is one
node, so owner maps whose runs are aligned move the least.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from openclaw_tasks.collectives.link import flat_view
from openclaw_tasks.collectives.topology import MAX_FACTS_BYTES, ExchangePlan
from openclaw_tasks.collectives.transport import Dynamic, OnIdle, ReceiveBuffer, SendBuffer, Transport
from openclaw_tasks.exact.canonical import Node, merge_order

# 512 KiB: an addend that stays in the second level cache between the levels of the tree.
_CHUNK_ELEMENTS = 128 * 1024


class DirectTopology:
    """See `Topology`. Keeps the receive buffers of the largest exchange: fresh ones cost page faults."""

    name: ClassVar[str] = "direct"

    def __init__(self) -> None:
        self._scratch = torch.empty(0)

    def reduce_scatter(
        self,
        transport: Transport,
        plan: ExchangePlan,
        nodes: Mapping[Node, Tensor],
        *,
        deadline_seconds: float,
        on_idle: OnIdle = None,
        at_half: Callable[[], None] | None = None,
    ) -> Tensor:
        """See `Topology.reduce_scatter`."""
        mine = plan.nodes_of(plan.rank)
        assert set(nodes) == set(mine), f"rank {plan.rank} holds {sorted(nodes)}, the plan says {mine}"
        for tensor in nodes.values():
            assert tensor.dtype == torch.float32, tensor.dtype
            assert tensor.shape == (plan.numel,), (tensor.shape, plan.numel)
        start, stop = plan.slices[plan.rank]
        theirs = self._receive_buffers(plan, stop - start)
        received = {node: tensor for of_peer in theirs.values() for node, tensor in of_peer.items()}
        transport.exchange(
            {
                peer: [nodes[node][lo:hi].numpy() for node in mine]
                for peer, (lo, hi) in enumerate(plan.slices)
                if peer != plan.rank and lo < hi and mine
            },
            {peer: [tensor.numpy() for tensor in of_peer.values()] for peer, of_peer in theirs.items()},
            deadline_seconds=deadline_seconds,
            on_idle=on_idle,
            at_half=at_half,
        )
        if start == stop:
            return torch.empty(0)
        return _sum_into_received({node: nodes[node][start:stop] for node in mine}, received, plan.num_shards)

    def all_gather(
        self,
        transport: Transport,
        plan: ExchangePlan,
        mine: SendBuffer,
        outs: Sequence[ReceiveBuffer],
        facts: bytes,
        *,
        deadline_seconds: float,
        max_facts_bytes: int = MAX_FACTS_BYTES,
        on_idle: OnIdle = None,
        at_half: Callable[[], None] | None = None,
    ) -> list[bytes]:
        """See `Topology.all_gather`."""
        assert len(outs) == plan.world_size, (len(outs), plan.world_size)
        assert len(facts) <= max_facts_bytes, (len(facts), max_facts_bytes)
        own, target = flat_view(mine), flat_view(outs[plan.rank])
        assert own.nbytes == target.nbytes, (own.nbytes, target.nbytes)
        if own.nbytes and mine is not outs[plan.rank]:
            target[:] = own
        peers = [peer for peer in range(plan.world_size) if peer != plan.rank]
        heard = transport.exchange(
            {peer: [own, facts] for peer in peers},
            {peer: [outs[peer], Dynamic(max_facts_bytes)] for peer in peers},
            deadline_seconds=deadline_seconds,
            on_idle=on_idle,
            at_half=at_half,
        )
        heard[plan.rank] = [None, bytearray(facts)]
        return [bytes(heard[rank][1] or b"") for rank in range(plan.world_size)]

    def _receive_buffers(self, plan: ExchangePlan, numel: int) -> dict[int, dict[Node, Tensor]]:
        """Per peer, a tensor of this rank's slice for each of its nodes; none if the slice is empty."""
        wanted = {peer: plan.nodes_of(peer) for peer in range(plan.world_size) if peer != plan.rank and numel > 0}
        count = sum(map(len, wanted.values()))
        if self._scratch.numel() < count * numel:
            self._scratch = torch.empty(count * numel)
        parts = iter(self._scratch[: count * numel].split(numel) if count else ())
        return {peer: {node: next(parts) for node in of_peer} for peer, of_peer in wanted.items() if of_peer}


def _sum_into_received(own: dict[Node, Tensor], received: dict[Node, Tensor], num_shards: int) -> Tensor:
    """The canonical sum, added up in the received tensors only.

    Of two siblings at most one is made of own shards alone (a rank's nodes are maximal), so the other one's
    tensor can always take their sum; operands keep the tree's order.
    """
    sums = own | received
    additions: list[tuple[Tensor, Tensor, Tensor]] = []
    for left, right in merge_order(sums):
        total = sums[right] if left in own else sums[left]
        additions.append((sums[left], sums[right], total))
        sums[left[0], 2 * left[1]] = total
    whole = sums[0, num_shards]
    for at in range(0, whole.numel(), _CHUNK_ELEMENTS):
        part = slice(at, at + _CHUNK_ELEMENTS)
        for a, b, total in additions:
            torch.add(a[part], b[part], out=total[part])
    return whole
