"""The canonical sum has the bits of one balanced binary tree."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from openclaw_tasks.exact.canonical import canonical_sum, fold, fold_scalars, owned_nodes, tree_nodes


def leaves(count: int, numel: int = 1000) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(numel, generator=generator) for _ in range(count)]


def test_tree_nodes_are_the_maximal_aligned_ones() -> None:
    assert tree_nodes(0, 8) == [(0, 8)]
    assert tree_nodes(1, 8) == [(1, 1), (2, 2), (4, 4)]
    assert tree_nodes(3, 6) == [(3, 1), (4, 2)]
    assert tree_nodes(5, 5) == []


def test_owned_nodes_take_a_contiguous_run_only() -> None:
    assert owned_nodes(range(2, 8)) == [(2, 2), (4, 4)]
    assert owned_nodes([]) == []
    with pytest.raises(AssertionError, match="contiguous"):
        owned_nodes([0, 2])


def test_the_sum_is_the_balanced_tree_and_not_left_to_right() -> None:
    a, b, c, d, e, f, g, h = leaves(8)
    expected = ((a + b) + (c + d)) + ((e + f) + (g + h))
    left_to_right = a + b + c + d + e + f + g + h
    total = canonical_sum({(i, 1): leaf.clone() for i, leaf in enumerate((a, b, c, d, e, f, g, h))}, 8)
    assert torch.equal(total, expected)
    assert not torch.equal(total, left_to_right)


def test_fold_stops_at_maximal_nodes_and_reuses_the_left_tensor() -> None:
    tensors = leaves(3)
    expected = tensors[1] + tensors[2]
    nodes = {(1, 1): tensors[0], (2, 1): tensors[1], (3, 1): tensors[2]}
    assert fold(nodes) is nodes
    assert set(nodes) == {(1, 1), (2, 2)}
    assert nodes[2, 2] is tensors[1]
    assert torch.equal(nodes[2, 2], expected)


def test_fold_of_long_tensors_equals_plain_additions() -> None:
    a, b, c, d = leaves(4, 300_001)
    expected = (a + b) + (c + d)
    assert torch.equal(canonical_sum({(i, 1): t for i, t in enumerate((a, b, c, d))}, 4), expected)


def test_one_shard_is_its_own_sum() -> None:
    (leaf,) = leaves(1)
    assert canonical_sum({(0, 1): leaf}, 1) is leaf


def test_nodes_that_do_not_cover_all_shards_are_refused() -> None:
    with pytest.raises(AssertionError, match="do not cover"):
        canonical_sum({(i, 1): leaf for i, leaf in enumerate(leaves(3))}, 4)


def test_empty_slices_fold() -> None:
    assert canonical_sum({(0, 1): torch.empty(0), (1, 1): torch.empty(0)}, 2).numel() == 0


def test_scalars_are_summed_along_the_same_tree() -> None:
    values = [0.1 * i + 1e-3 for i in range(8)]
    a, b, c, d, e, f, g, h = values
    assert fold_scalars(values) == ((a + b) + (c + d)) + ((e + f) + (g + h))
    assert fold_scalars([3]) == 3.0
    with pytest.raises(AssertionError):
        fold_scalars([1.0, 2.0, 3.0])
