"""Randomness as a pure function of position: no generator's state is ever saved.

Before each sample, each shard's forward and each update the python, numpy and torch generators are
seeded from where in the run we are. Who computes it, and what was computed before, does not matter.
"""

from __future__ import annotations

import functools
import hashlib
import random
import struct

import numpy as np
import numpy.typing as npt
import torch


def _words(kind: bytes, *position: int) -> tuple[int, ...]:
    """Eight 32-bit words that differ between kinds and positions."""
    text = b",".join(str(number).encode() for number in position)
    return struct.unpack("<8I", hashlib.blake2b(text, digest_size=32, person=kind).digest())


def _seed_all(words: tuple[int, ...]) -> None:
    random.seed(words[0] << 32 | words[1])
    np.random.seed(words[2:5])
    seed = (words[5] << 32 | words[6]) >> 1
    # Not torch.manual_seed: it visits every backend each time, which costs more than a small forward.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def seed_sample(seed: int, epoch: int, index: int) -> None:
    """Seed all generators for reading sample `index` of the dataset in `epoch`."""
    _seed_all(_words(b"sample", seed, epoch, index))


def seed_shard(seed: int, step: int, shard: int) -> None:
    """Seed all generators for the forward of one logical shard of one step."""
    _seed_all(_words(b"shard", seed, step, shard))


def seed_update(step: int) -> None:
    """Seed all generators for the update of `step`, for optimizers that draw random numbers.

    Independent of the job's seed, so that an update depends on state and record alone.
    """
    _seed_all(_words(b"update", step))


@functools.lru_cache(maxsize=2)
def permutation(seed: int, epoch: int, n: int) -> npt.NDArray[np.int64]:
    """The order of `n` samples in `epoch`; read-only, kept for the last two epochs.

    By numpy's legacy generator, whose streams are frozen; the new one's may change between versions.
    """
    order = np.random.RandomState(_words(b"permutation", seed, epoch)).permutation(n).astype(np.int64)
    order.flags.writeable = False
    return order
