"""How ranks add their gradients: what every topology promises, and the topologies by name.

A topology decides who sends what to whom; the bits of the sum are fixed by the canonical tree over the
logical shards (`exact.canonical`) and are the same for each topology, world size and owner map.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from openclaw_tasks.collectives.transport import OnIdle, ReceiveBuffer, SendBuffer, Transport
from openclaw_tasks.errors import JobError
from openclaw_tasks.exact.canonical import Node, tree_nodes

MAX_FACTS_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ExchangePlan:
    """Who owns what in one generation, alike on all ranks but for `rank`.

    `runs`: the shards lo .. hi - 1 of each rank, in rank order, covering 0 .. L - 1 once; L is a power of
    two, a run may be empty. `slices`: the elements start .. stop - 1 of the flat gradient that each rank
    sums, encodes and hands round, likewise covering it once.
    """

    rank: int
    runs: tuple[tuple[int, int], ...]
    slices: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        assert 0 <= self.rank < len(self.runs) == len(self.slices), self
        for spans in (self.runs, self.slices):
            ends = [0, *(stop for _start, stop in spans)]
            in_order = all(lo == end and lo <= hi for (lo, hi), end in zip(spans, ends, strict=False))
            assert in_order, f"{spans} do not follow each other from 0"
        assert self.num_shards.bit_count() == 1, f"{self.num_shards} shards are not a power of two"

    @property
    def world_size(self) -> int:
        return len(self.runs)

    @property
    def num_shards(self) -> int:
        return self.runs[-1][1]

    @property
    def numel(self) -> int:
        return self.slices[-1][1]

    def nodes_of(self, rank: int) -> list[Node]:
        """The subtree sums that `rank` makes alone, the only ones it sends."""
        return tree_nodes(*self.runs[rank])


class Topology(Protocol):
    """One way to exchange. Used by one thread; may keep scratch memory between calls."""

    @property
    def name(self) -> str: ...

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
        """This rank's slice of the canonical sum over all shards.

        `nodes` are this rank's maximal subtree sums: exactly `plan.nodes_of(plan.rank)`, flat float32
        tensors of `plan.numel` elements on the CPU; they are not changed, so the step can be redone after
        a failure. The result is to be read only (a rank that owns all shards gets a view of its node), and
        holds until the next call. Raises what `Transport.exchange` raises.
        """
        ...

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
        """Fill `outs[r]` with the `mine` of each rank r, and return the `facts` of each, in rank order.

        All ranks give `outs` of the same sizes and the same `max_facts_bytes`. `outs[plan.rank]` may be
        `mine` itself, then it is not copied. Raises what `Transport.exchange` raises.
        """
        ...


def topology_named(name: str) -> Topology:
    """A topology with scratch of its own. Raises JobError for a name that is not known."""
    from openclaw_tasks.collectives.direct import DirectTopology

    topologies: dict[str, Callable[[], Topology]] = {DirectTopology.name: DirectTopology}
    if name not in topologies:
        raise JobError(f"topology {name!r} is not known: choose one of {', '.join(sorted(topologies))}")
    return topologies[name]()
