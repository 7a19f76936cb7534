"""The direct topology: the same bits for any number of ranks and any owner map."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mesh_threads import SECONDS, Gang, all_well
from torch import Tensor

from openclaw_tasks.collectives.direct import DirectTopology
from openclaw_tasks.collectives.mesh import Mesh
from openclaw_tasks.collectives.topology import ExchangePlan, topology_named
from openclaw_tasks.collectives.transport import LinkBrokenError
from openclaw_tasks.errors import JobError
from openclaw_tasks.exact.canonical import canonical_sum, fold

Spans = tuple[tuple[int, int], ...]


def spans(*ends: int) -> Spans:
    return tuple(zip((0, *ends), ends, strict=False))


def shard_gradients(count: int, numel: int, seed: int = 0) -> list[Tensor]:
    """Of very different sizes, so that another association gives other bits."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.pow(10.0, torch.randint(-6, 6, (count, numel), generator=generator).float())
    return list(torch.randn(count, numel, generator=generator) * scale)


def sum_on_one_rank(shards: list[Tensor]) -> Tensor:
    return canonical_sum({(lo, 1): shard.clone() for lo, shard in enumerate(shards)}, len(shards))


def own_nodes(shards: list[Tensor], run: tuple[int, int]) -> dict[tuple[int, int], Tensor]:
    return fold({(lo, 1): shards[lo].clone() for lo in range(*run)})


def bits_equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def reduced(gang: Gang, runs: Spans, slices: Spans, shards: list[Tensor]) -> Tensor:
    """The slices of all ranks, one after the other."""

    def reduce(mesh: Mesh) -> Tensor:
        plan = ExchangePlan(mesh.rank, runs, slices)
        nodes = own_nodes(shards, runs[mesh.rank])
        before = {node: tensor.clone() for node, tensor in nodes.items()}
        part = DirectTopology().reduce_scatter(mesh, plan, nodes, deadline_seconds=SECONDS)
        assert before.keys() == nodes.keys()
        assert all(bits_equal(before[node], nodes[node]) for node in nodes)
        return part

    return torch.cat(all_well(gang.run(reduce)))


@pytest.fixture(scope="module")
def gangs() -> Iterator[dict[int, Gang]]:
    """Meshed once; each example is one more exchange."""
    made = {size: Gang(size) for size in (1, 2, 3, 4, 5, 8)}
    yield made
    for gang in made.values():
        gang.close()


def test_association_matters_in_these_tests() -> None:
    shards = shard_gradients(8, 4096)
    from_the_left = sum(shards[1:], shards[0])
    assert not bits_equal(from_the_left, sum_on_one_rank(shards))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_bits_are_those_of_one_rank(gangs: dict[int, Gang], size: int) -> None:
    shards = shard_gradients(8, 300_000)
    runs = spans(*((rank + 1) * 8 // size for rank in range(size)))
    slices = spans(*((rank + 1) * 300_000 // size for rank in range(size)))
    assert bits_equal(reduced(gangs[size], runs, slices, shards), sum_on_one_rank(shards))


@pytest.mark.parametrize(
    ("runs", "slices"),
    [
        (spans(0, 8, 8), spans(1000, 2000, 3000)),
        (spans(3, 3, 8), spans(0, 3000, 3000)),
        (spans(1, 7, 8), spans(10, 11, 3000)),
        (spans(8, 8, 8), spans(0, 0, 3000)),
        (spans(0, 5, 8), spans(0, 0, 0)),
    ],
    ids=["no shards", "neither shards nor elements", "crooked", "all to a rank with none", "nothing"],
)
def test_runs_and_slices_may_be_uneven_and_empty(gangs: dict[int, Gang], runs: Spans, slices: Spans) -> None:
    shards = shard_gradients(8, slices[-1][1])
    assert bits_equal(reduced(gangs[3], runs, slices, shards), sum_on_one_rank(shards))


@st.composite
def owner_maps(draw: st.DrawFn) -> tuple[int, Spans, Spans]:
    size = draw(st.sampled_from([1, 2, 3, 4, 5, 8]))
    shards = draw(st.sampled_from([1, 2, 4, 8, 16, 32]))
    numel = draw(st.integers(0, 700))
    cuts = st.lists(st.integers(0, shards), min_size=size - 1, max_size=size - 1)
    slices = st.lists(st.integers(0, numel), min_size=size - 1, max_size=size - 1)
    return size, spans(*sorted(draw(cuts)), shards), spans(*sorted(draw(slices)), numel)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(owner_maps(), st.integers(0, 2**16))
def test_bits_are_the_same_for_any_owner_map(
    gangs: dict[int, Gang], owners: tuple[int, Spans, Spans], seed: int
) -> None:
    size, runs, slices = owners
    shards = shard_gradients(runs[-1][1], slices[-1][1], seed)
    assert bits_equal(reduced(gangs[size], runs, slices, shards), sum_on_one_rank(shards))


def test_not_finite_gradients_arrive_as_they_are(gangs: dict[int, Gang]) -> None:
    shards = shard_gradients(8, 64)
    shards[2][3], shards[5][7], shards[6][7] = float("nan"), float("inf"), float("-inf")
    total = reduced(gangs[4], spans(2, 4, 6, 8), spans(16, 32, 48, 64), shards)
    assert torch.equal(total.isnan(), sum_on_one_rank(shards).isnan())
    assert total.isnan().nonzero().flatten().tolist() == [3, 7]


def test_step_can_be_redone_with_the_same_nodes_after_a_peer_is_lost() -> None:
    """Survivors keep the nodes of the open step; the next generation sums them to the same bits."""
    shards = shard_gradients(8, 5000)
    runs, slices = spans(3, 5, 8), spans(2000, 4000, 5000)
    kept = [own_nodes(shards, run) for run in runs]
    with Gang(3) as gang:

        def lose_one(mesh: Mesh) -> None:
            with mesh:
                if mesh.rank != 1:
                    plan = ExchangePlan(mesh.rank, runs, slices)
                    DirectTopology().reduce_scatter(mesh, plan, kept[mesh.rank], deadline_seconds=SECONDS)

        errors = gang.run(lose_one)
        assert isinstance(errors[0], LinkBrokenError)
        assert isinstance(errors[2], LinkBrokenError)
    runs_now, slices_now = spans(5, 8), spans(2500, 5000)
    nodes_now = [fold({**kept[0], **own_nodes(shards, (3, 5))}), kept[2]]
    with Gang(2, generation=2) as gang:

        def redo(mesh: Mesh) -> Tensor:
            plan = ExchangePlan(mesh.rank, runs_now, slices_now)
            return DirectTopology().reduce_scatter(mesh, plan, nodes_now[mesh.rank], deadline_seconds=SECONDS)

        assert bits_equal(torch.cat(all_well(gang.run(redo))), sum_on_one_rank(shards))


def test_one_topology_serves_steps_of_different_plans() -> None:
    """Its scratch grows, and what is left in it from another step does not show."""
    with Gang(2) as gang:
        topologies = [DirectTopology(), DirectTopology()]
        for seed, (numel, cut) in enumerate([(1000, 4), (90_000, 1), (3000, 6), (90_000, 0), (1000, 8)]):
            shards = shard_gradients(8, numel, seed)
            runs, slices = spans(cut, 8), spans(numel // 3, numel)

            def reduce(mesh: Mesh) -> Tensor:
                plan = ExchangePlan(mesh.rank, runs, slices)  # noqa: B023
                nodes = own_nodes(shards, runs[mesh.rank])  # noqa: B023
                return topologies[mesh.rank].reduce_scatter(mesh, plan, nodes, deadline_seconds=SECONDS)

            assert bits_equal(torch.cat(all_well(gang.run(reduce))), sum_on_one_rank(shards))


def test_rank_that_owns_all_shards_gets_a_view_of_its_node() -> None:
    shards = shard_gradients(4, 100)
    with Gang(1) as gang:
        nodes = own_nodes(shards, (0, 4))
        plan = ExchangePlan(0, spans(4), spans(100))
        part = DirectTopology().reduce_scatter(gang.meshes[0], plan, nodes, deadline_seconds=SECONDS)
    assert part.data_ptr() == nodes[0, 4].data_ptr()


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("lengths", [(10,), (7, 9), (0, 5, 3), (0, 0), (1, 2, 3, 4, 5)])
def test_all_gather_gives_every_rank_everything(lengths: tuple[int, ...], in_place: bool) -> None:
    size = len(lengths)
    facts = [f"facts of {rank}".encode() * rank for rank in range(size)]

    def gather(mesh: Mesh) -> tuple[np.ndarray, list[bytes]]:
        whole = np.zeros(sum(lengths), np.uint8)
        outs = np.split(whole, np.cumsum(lengths)[:-1])
        mine = outs[mesh.rank] if in_place else np.zeros(lengths[mesh.rank], np.uint8)
        mine[:] = mesh.rank + 1
        plan = ExchangePlan(mesh.rank, spans(*([0] * (size - 1)), 8), spans(*range(1, size + 1)))
        return whole, topology_named("direct").all_gather(
            mesh, plan, mine, outs, facts[mesh.rank], deadline_seconds=SECONDS
        )

    with Gang(size) as gang:
        for whole, heard in all_well(gang.run(gather)):
            assert heard == facts
            assert whole.tolist() == np.repeat(range(1, size + 1), lengths).tolist()


def test_facts_beyond_their_bound_break_the_link() -> None:
    def gather(mesh: Mesh) -> None:
        plan = ExchangePlan(mesh.rank, spans(4, 8), spans(1, 2))
        outs = [bytearray(1), bytearray(1)]
        bound, facts = (200, bytes(101)) if mesh.rank == 0 else (100, b"")
        with mesh:
            DirectTopology().all_gather(mesh, plan, b"x", outs, facts, max_facts_bytes=bound, deadline_seconds=SECONDS)

    with Gang(2) as gang:
        error = gang.run(gather)[1]
    assert isinstance(error, LinkBrokenError)
    assert "101 bytes where at most 100" in error.reason


def test_topologies_have_names() -> None:
    assert topology_named("direct").name == "direct"
    with pytest.raises(JobError, match="'rnig' is not known: choose one of direct"):
        topology_named("rnig")


@pytest.mark.parametrize(
    ("rank", "runs", "slices"),
    [
        (2, spans(4, 8), spans(1, 2)),
        (0, spans(4, 8), spans(1, 2, 3)),
        (0, ((0, 4), (5, 8)), spans(1, 2)),
        (0, spans(4, 8), ((0, 5), (3, 9))),
        (0, spans(4, 3), spans(1, 2)),
        (0, spans(4, 6), spans(1, 2)),
        (0, spans(0, 0), spans(1, 2)),
    ],
    ids=["rank", "lengths", "gap", "overlap", "backwards", "not a power of two", "no shards"],
)
def test_plan_that_does_not_cover_everything_once_is_refused(rank: int, runs: Spans, slices: Spans) -> None:
    with pytest.raises(AssertionError):
        ExchangePlan(rank, runs, slices)
