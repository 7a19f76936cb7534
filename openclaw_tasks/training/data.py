"""Which samples each step and shard consist of: a pure function of (seed, step, shard), without any state.

Sample i of step s is position p = (s - 1) * global_batch + i: epoch p // N, index
permutation(seed, epoch)[p % N], N samples in the dataset. A batch runs over an epoch's end; no partial batch
exists.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from openclaw_tasks.errors import RecipeError
from openclaw_tasks.exact.seeding import permutation, seed_sample
from openclaw_tasks.training.value_digest import ValueHasher

Position = tuple[int, int]
"""(epoch, index): the index-th sample of the dataset, for the epoch-th time."""

_FINGERPRINT_SAMPLES = 64


class ShardSource:
    """The batches of a job's dataset, shard by shard."""

    def __init__(
        self,
        dataset: Dataset[Any],
        collate: Callable[[list[Any]], Any],
        seed: int,
        global_batch: int,
        logical_shards: int,
    ) -> None:
        """Raises RecipeError for a dataset that is iterable or empty."""
        assert global_batch % logical_shards == 0
        self.size = dataset_size(dataset)
        self.logical_shards = logical_shards
        self._dataset = dataset
        self._collate = collate
        self._seed = seed
        self._global_batch = global_batch

    def positions(self, step: int, shard: int) -> list[Position]:
        """The samples of a shard of step 1, 2, ... in order: `global_batch // logical_shards` of them."""
        assert step >= 1
        assert 0 <= shard < self.logical_shards
        per_shard = self._global_batch // self.logical_shards
        first = (step - 1) * self._global_batch + shard * per_shard
        places = (divmod(position, self.size) for position in range(first, first + per_shard))
        return [(epoch, int(permutation(self._seed, epoch, self.size)[place])) for epoch, place in places]

    def batch(self, step: int, shard: int) -> Any:
        """The shard's collated batch.

        Before each `__getitem__` the generators are seeded by (seed, epoch, index), so augmentation is the
        sample's own. Collating goes on with the generators as the last sample left them, which is as
        reproducible. What the dataset raises passes, with a note that names the sample.
        """
        samples = [self._read(epoch, index) for epoch, index in self.positions(step, shard)]
        return self._collate(samples)

    def _read(self, epoch: int, index: int) -> Any:
        seed_sample(self._seed, epoch, index)
        try:
            return self._dataset[index]
        # The user's code may raise anything; it is raised on, only told apart.
        except Exception as error:
            error.add_note(f"while reading sample {index} of the dataset in epoch {epoch}")
            raise


def dataset_size(dataset: object) -> int:
    """The number of samples. Raises RecipeError for what is iterable, empty, or no dataset at all."""
    kind = type(dataset).__name__
    remedy = "return a map-style dataset: __len__() and __getitem__(index)"
    if isinstance(dataset, IterableDataset):
        raise RecipeError(f"dataset() returned {kind}, an iterable dataset, whose position cannot be kept; {remedy}")
    try:
        size = len(dataset)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError) as error:
        raise RecipeError(f"dataset() returned {kind}, which has no length; {remedy}") from error
    if not hasattr(dataset, "__getitem__"):
        raise RecipeError(f"dataset() returned {kind}, whose samples have no index; {remedy}")
    if size < 1:
        raise RecipeError(f"dataset() returned {kind} without a sample; name data that exists")
    return size


def dataset_fingerprint(dataset: Dataset[Any], seed: int) -> str:
    """SHA-256 in hex over what the dataset's `fingerprint()` gives, or else over its length and 64 samples.

    The samples are chosen by `seed`, and read with the generators seeded as in epoch 0. Raises RecipeError
    when one holds a value of a type whose content is not known; what the dataset raises passes.
    """
    declared = getattr(dataset, "fingerprint", None)
    if callable(declared):
        value = declared()
        if not isinstance(value, str | bytes):
            raise RecipeError(f"fingerprint() of the dataset returned {type(value).__name__}; return str or bytes")
        data = value.encode() if isinstance(value, str) else value
        return hashlib.sha256(b"declared\0" + data).hexdigest()
    size = dataset_size(dataset)
    hasher = ValueHasher()
    hasher.add(size)
    for index in _chosen(seed, size):
        seed_sample(seed, 0, index)
        hasher.add(index)
        hasher.add(dataset[index])
    return hasher.hexdigest()


def _chosen(seed: int, size: int) -> list[int]:
    if size <= _FINGERPRINT_SAMPLES:
        return list(range(size))
    digests = (hashlib.sha256(f"{seed}:{i}".encode()).digest() for i in range(_FINGERPRINT_SAMPLES))
    return [int.from_bytes(digest, "big") % size for digest in digests]
