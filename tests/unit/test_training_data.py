"""Which samples a step reads, and in what state of the generators."""

from __future__ import annotations

import collections
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import zoo
from torch.utils.data import Dataset, IterableDataset, default_collate

from openclaw_tasks.errors import RecipeError
from openclaw_tasks.training.data import Position, ShardSource, dataset_fingerprint
from openclaw_tasks.training.value_digest import ValueHasher


def source_of(samples: int, global_batch: int, shards: int, seed: int = 3) -> ShardSource:
    return ShardSource(zoo.Blobs(samples, augmented=True), default_collate, seed, global_batch, shards)


def samples_of(source: ShardSource, steps: range) -> list[Position]:
    return [
        place for step in steps for shard in range(source.logical_shards) for place in source.positions(step, shard)
    ]


@pytest.mark.parametrize("ranks", [4, 2])
def test_every_sample_comes_once_an_epoch_on_any_number_of_ranks(ranks: int) -> None:
    """bghira/SimpleTuner#2986: after a resume some samples came twice, others never."""
    shards_of_rank = [range(rank * 4 // ranks, (rank + 1) * 4 // ranks) for rank in range(ranks)]
    read: list[Position] = []
    for step in range(1, 10):
        source = source_of(samples=12, global_batch=4, shards=4)  # each step by fresh processes
        read += [place for shards in shards_of_rank for shard in shards for place in source.positions(step, shard)]
    assert Counter(read) == Counter((epoch, index) for epoch in range(3) for index in range(12))


@pytest.mark.parametrize("killed_after", [0, 5, 10, 14])
def test_samples_after_a_restart_are_those_of_the_unbroken_run(killed_after: int) -> None:
    """huggingface/transformers#8878: every restart replayed the shuffle of epoch 0. Epochs here: 5 steps."""
    unbroken = samples_of(source_of(10, 2, 2), range(1, 16))
    before = samples_of(source_of(10, 2, 2), range(1, killed_after + 1))
    random.random(), np.random.rand(), torch.rand(1)  # the new process starts with other generators
    after = samples_of(source_of(10, 2, 2), range(killed_after + 1, 16))
    assert before + after == unbroken


def test_each_epoch_has_its_own_order() -> None:
    orders = [
        tuple(index for _, index in samples_of(source_of(10, 2, 2), range(5 * epoch + 1, 5 * epoch + 6)))
        for epoch in range(3)
    ]
    assert len(set(orders)) == 3


def test_no_epoch_is_exhausted_when_a_run_goes_on_right_at_its_end() -> None:
    """verl-project/verl#7401: the loader was 'exhausted' at an epoch's end; the job ended under-trained."""
    source = source_of(samples=8, global_batch=8, shards=8)
    for step in range(2, 5):
        assert sorted(samples_of(source, range(step, step + 1))) == [(step - 1, index) for index in range(8)]


def test_batch_runs_over_an_epochs_end() -> None:
    source = source_of(samples=5, global_batch=4, shards=2)
    epochs = [epoch for epoch, _ in samples_of(source, range(2, 3))]
    assert epochs == [0, 1, 1, 1]


def test_dataset_smaller_than_a_batch_is_read_several_times_in_a_step() -> None:
    read = samples_of(source_of(samples=3, global_batch=16, shards=4), range(1, 4))
    assert Counter(read) == Counter((place // 3, index) for place in range(0, 48, 3) for index in range(3))


def test_augmentation_depends_on_the_sample_alone() -> None:
    def batch(shard: int) -> torch.Tensor:
        return source_of(48, 16, 8).batch(2, shard).features

    expected = [batch(shard) for shard in range(8)]
    torch.manual_seed(99)
    again = {shard: batch(shard) for shard in (5, 0, 5, 7)}
    assert all(torch.equal(again[shard], expected[shard]) for shard in again)


def test_augmentation_differs_between_epochs() -> None:
    source = source_of(samples=4, global_batch=4, shards=1)
    first, second = source.batch(1, 0), source.batch(2, 0)
    order_first, order_second = first.index.argsort(), second.index.argsort()
    assert not torch.equal(first.features[order_first], second.features[order_second])


def test_samples_size_and_order_do_not_depend_on_the_shards() -> None:
    """One shard of eight samples reads what eight shards of one read."""
    assert samples_of(source_of(20, 8, 1), range(1, 8)) == samples_of(source_of(20, 8, 8), range(1, 8))


class Failing(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        raise OSError("no such picture")


def test_error_of_the_dataset_passes_and_tells_the_sample() -> None:
    source = ShardSource(Failing(), default_collate, 0, 4, 4)
    (epoch, index) = source.positions(1, 2)[0]
    with pytest.raises(OSError, match="no such picture") as caught:
        source.batch(1, 2)
    assert caught.value.__notes__ == [f"while reading sample {index} of the dataset in epoch {epoch}"]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


class Lengthless(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return 0


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (Stream(), "iterable dataset, whose position cannot be kept; return a map-style dataset"),
        (Lengthless(), "no length; return a map-style dataset"),
        (iter([1]), "no length"),
        ({1, 2}, "no index"),
        ([], "without a sample"),
        (None, "NoneType"),
    ],
)
def test_dataset_without_an_order_of_ours_is_refused(dataset: Any, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        ShardSource(dataset, default_collate, 0, 4, 4)


class Declared(Dataset[Any]):
    def __init__(self, value: Any) -> None:
        self.value = value

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("not needed")

    def fingerprint(self) -> Any:
        return self.value


def test_declared_fingerprint_is_taken_and_may_be_text_or_bytes() -> None:
    assert dataset_fingerprint(Declared("v1"), 0) == dataset_fingerprint(Declared(b"v1"), 9)
    assert dataset_fingerprint(Declared("v1"), 0) != dataset_fingerprint(Declared("v2"), 0)
    with pytest.raises(RecipeError, match="returned int; return str or bytes"):
        dataset_fingerprint(Declared(1), 0)


def test_fingerprint_sees_length_content_and_augmentation_but_no_generator() -> None:
    first = dataset_fingerprint(zoo.Blobs(1000, augmented=True), 5)
    torch.manual_seed(123)
    assert dataset_fingerprint(zoo.Blobs(1000, augmented=True), 5) == first
    changed = zoo.Blobs(1000, augmented=True)
    changed.features += 1e-6
    others = [zoo.Blobs(1004, augmented=True), zoo.Blobs(1000), changed]
    assert first not in [dataset_fingerprint(other, 5) for other in others]


class Unknown:
    pass


def test_sample_of_unknown_type_is_refused_with_the_remedy() -> None:
    with pytest.raises(RecipeError, match=r"holds a .*Unknown.*fingerprint\(\) -> str"):
        dataset_fingerprint([(1, Unknown())], 0)  # type: ignore[arg-type]


Pair = collections.namedtuple("Pair", "a b")

VALUES: list[Any] = [
    None, True, 1, 1.0, 1j, "1", b"1", 0, -0.0, 0.0, float("nan"), (1, 2), [1, 2], [[1], 2], [1, [2]],
    Pair(1, 2), {"a": 1}, {"a": 2}, {"b": 1}, {"a", "b"}, ["a", "b"], ["ab"], ["a", "", "b"],
    torch.tensor(1), torch.tensor([1]), torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.bfloat16),
    torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(0), torch.tensor([1 + 2j]),
    torch.tensor([1 + 2j]).conj(),
    np.zeros(6, np.float32), np.zeros((2, 3), np.float32), np.float32(0), np.array([None, "a"], dtype=object),
    np.array(["a"]), np.array([(1, 2.0)], dtype=[("x", "i4"), ("y", "f4")]),
]  # fmt: skip


def digest(*values: Any) -> str:
    hasher = ValueHasher()
    for value in values:
        hasher.add(value)
    return hasher.hexdigest()


def test_values_that_differ_in_type_or_structure_have_different_digests() -> None:
    digests = [digest(value) for value in VALUES]
    assert len(set(digests)) == len(VALUES)
    assert digests == [digest(value) for value in VALUES]
    assert digest("a", "b") != digest("ab", "")


def test_order_of_mappings_and_sets_and_strides_of_tensors_do_not_count() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    matrix = torch.arange(6).view(2, 3)
    assert digest(matrix.t()) == digest(matrix.t().contiguous())
    assert digest(matrix.float().to_sparse()) == digest(matrix.float())
