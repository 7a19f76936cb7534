"""Randomness and arithmetic are functions of position and machine, and say so."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from openclaw_tasks.exact.fingerprint import arithmetic_fingerprint, set_deterministic
from openclaw_tasks.exact.seeding import permutation, seed_sample, seed_shard, seed_update


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), torch.rand(()).item()


def test_the_same_position_gives_the_same_numbers_whatever_was_drawn_before() -> None:
    seed_shard(17, 3, 5)
    first = draws()
    draws()
    torch.rand(1000)
    seed_shard(17, 3, 5)
    assert draws() == first


def test_all_three_generators_differ_between_positions_and_kinds() -> None:
    seen = []
    for place in [
        lambda: seed_shard(17, 3, 5),
        lambda: seed_shard(17, 5, 3),
        lambda: seed_shard(18, 3, 5),
        lambda: seed_shard(1, 73, 5),
        lambda: seed_sample(17, 3, 5),
        lambda: seed_update(17),
    ]:
        place()
        seen.append(draws())
    for column in zip(*seen, strict=True):
        assert len(set(column)) == len(seen)


def test_the_numbers_are_pinned() -> None:
    """A run must go on with the same numbers after an update of this package or of numpy."""
    seed_sample(17, 2, 1000)
    assert draws() == (0.32673146325728075, 0.5094666363375626, 0.9561663866043091)
    assert permutation(17, 2, 10).tolist() == [3, 0, 4, 9, 6, 2, 8, 5, 7, 1]


def test_huge_and_negative_seeds_are_taken() -> None:
    seed_sample(2**70, 0, 0)
    seed_sample(-1, 0, 0)


def test_every_epoch_has_its_own_permutation_of_all_samples() -> None:
    """huggingface/transformers#8878: after a restart epoch 0's shuffle was replayed."""
    first, second = permutation(17, 0, 1000), permutation(17, 1, 1000)
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(1000))
    assert first.tolist() != second.tolist()
    np.random.seed(0)
    random.seed(0)
    permutation.cache_clear()
    assert permutation(17, 1, 1000).tolist() == second.tolist()


def test_a_permutation_cannot_be_changed_by_its_users() -> None:
    with pytest.raises(ValueError, match="read-only"):
        permutation(17, 0, 10)[0] = 1


def test_the_fingerprint_names_all_that_bits_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    fingerprint = arithmetic_fingerprint(1)
    assert all(type(key) is str and type(value) is str for key, value in fingerprint.items())
    assert {"device", "isa", "torch", "threads", "deterministic"} <= fingerprint.keys()
    assert fingerprint["torch"] == torch.__version__
    assert arithmetic_fingerprint(1) == fingerprint
    assert arithmetic_fingerprint(2) != fingerprint
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert arithmetic_fingerprint(1) != fingerprint


def test_set_deterministic_is_seen_in_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    threads, filled = torch.get_num_threads(), torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    flags = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    try:
        set_deterministic(1)
        assert torch.get_num_threads() == 1
        assert arithmetic_fingerprint(1)["deterministic"] == "yes"
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = flags
    assert arithmetic_fingerprint(1)["deterministic"] == "no"
