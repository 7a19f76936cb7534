"""The canonical sum: one balanced binary tree over the logical shards, whoever owns them.

Floating point addition is not associative, so a sum has the same bits on one rank and on seven only
when its association is fixed. It is fixed here: leaves are the shards, a node `(lo, size)` is the sum
over shards `lo .. lo + size - 1`, and it is the sum of its two halves. A rank holds the *maximal*
nodes inside its contiguous run of shards and exchanges nothing smaller.

Relies on addition being commutative bit for bit (IEEE 754; NaN payloads aside, which no record holds).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

Node = tuple[int, int]
"""`(lo, size)`: the subtree over shards lo .. lo + size - 1; size is a power of two and divides lo."""

_CHUNK_ELEMENTS = 128 * 1024
"""Elements added at a time: 512 KiB, so that a subtree's partial sums stay in the second level cache."""


def tree_nodes(lo: int, hi: int) -> list[Node]:
    """The maximal nodes that cover shards lo .. hi - 1, in order; empty for an empty run."""
    nodes: list[Node] = []
    while lo < hi:
        size = 1
        while lo % (2 * size) == 0 and lo + 2 * size <= hi:
            size *= 2
        nodes.append((lo, size))
        lo += size
    return nodes


def owned_nodes(shards: Sequence[int]) -> list[Node]:
    """The maximal nodes of an owner's contiguous run of shards (a range or an ascending list)."""
    if not shards:
        return []
    lo, hi = shards[0], shards[-1] + 1
    assert list(shards) == list(range(lo, hi)), "an owner's shards are one contiguous ascending run"
    return tree_nodes(lo, hi)


def merge_order(nodes: Iterable[Node]) -> list[tuple[Node, Node]]:
    """The (left, right) pairs that adding siblings joins, smallest first; left becomes their parent."""
    present = set(nodes)
    merges: list[tuple[Node, Node]] = []
    size = 1
    while any(node[1] >= size for node in present):
        for node in sorted(node for node in present if node[1] == size and node[0] % (2 * size) == 0):
            sibling = (node[0] + size, size)
            if sibling in present:
                merges.append((node, sibling))
                present -= {node, sibling}
                present.add((node[0], 2 * size))
        size *= 2
    return merges


def fold(nodes: dict[Node, Tensor]) -> dict[Node, Tensor]:
    """Add siblings until only maximal nodes are left; changes `nodes` and its tensors, returns `nodes`.

    The tensors are one-dimensional and of one length. A parent lives in its left child's tensor; a
    right child leaves the dict and keeps its own node's sum.
    """
    merges = merge_order(nodes)
    if not merges:
        return nodes
    chunks = {node: tensor.split(_CHUNK_ELEMENTS) for node, tensor in nodes.items()}
    pairs = []
    for left, right in merges:
        pairs.append((chunks[left], chunks[right]))
        chunks[left[0], 2 * left[1]] = chunks[left]
    for index in range(len(pairs[0][0])):
        for target, addend in pairs:
            target[index].add_(addend[index])
    for left, right in merges:
        nodes[left[0], 2 * left[1]] = nodes.pop(left)
        del nodes[right]
    return nodes


def canonical_sum(nodes: dict[Node, Tensor], shards: int) -> Tensor:
    """The sum over all `shards` shards from nodes that cover them; folds `nodes` in place."""
    assert shards.bit_count() == 1, "the number of logical shards is a power of two"
    fold(nodes)
    assert set(nodes) == {(0, shards)}, f"nodes {sorted(nodes)} do not cover {shards} shards once"
    return nodes[0, shards]


def fold_scalars(values: Sequence[float]) -> float:
    """The same tree over one float64 a shard, in shard order (losses, counts)."""
    level = [float(value) for value in values]
    assert len(level).bit_count() == 1, "one value for each of a power of two of shards"
    while len(level) > 1:
        level = [level[i] + level[i + 1] for i in range(0, len(level), 2)]
    return level[0]
