"""A shard's gradient, facts and buffers: a pure function that leaves the state as it was."""

from __future__ import annotations

import random
from typing import Any, cast

import numpy as np
import oracle
import pytest
import torch
import zoo
from split_run import owner_runs, run_split
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from openclaw_tasks.errors import RunError
from openclaw_tasks.exact.record import Record, unpack_presence
from openclaw_tasks.recipes.recipe import LossSum, Recipe
from openclaw_tasks.training.build import Training, build_training
from openclaw_tasks.training.compute import ShardComputer, ShardResult, checked_loss


def facts(result: ShardResult) -> tuple[bytes, bytes, float, int, list[tuple[str, bytes]]]:
    buffers = [(change.name, bytes(change.data)) for change in result.changed_buffers]
    return (
        result.gradient.numpy().tobytes(),
        result.present_bits,
        result.loss,
        result.items,
        buffers,
    )


def everything(optimizer: str = "adamw", steps: int = 0) -> Training:
    training = build_training(zoo.job("Everything", recipe_args={"optimizer": optimizer}))
    for _ in range(steps):
        oracle.take_step(training)
    return training


@pytest.mark.parametrize("order", [[3], [7, 3, 0, 3], list(reversed(range(8)))])
def test_shard_is_the_same_whatever_is_computed_before_it(order: list[int]) -> None:
    training = everything(steps=2)
    expected = [facts(training.computer.compute(3, shard)) for shard in range(8)]
    training = everything(steps=2)
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    for shard in order:
        assert facts(training.computer.compute(3, shard)) == expected[shard]


def test_computing_leaves_the_state_as_it_was() -> None:
    training = everything(steps=2)
    buffers = {name: (id(b), b.clone()) for name, b in training.state.model.named_buffers()}
    before = training.state.digests()
    for shard in range(8):
        training.computer.compute(3, shard)
    assert training.state.digests() == before
    for name, buffer in training.state.model.named_buffers():
        identity, value = buffers[name]
        assert id(buffer) == identity
        assert torch.equal(buffer, value)
    assert all(parameter.grad is None for parameter in training.state.model.parameters())


def test_buffers_that_the_forward_changed_are_reported_persistent_or_not() -> None:
    changes = everything().computer.compute(1, 0).changed_buffers
    assert [change.name for change in changes] == [
        "norm.num_batches_tracked",
        "norm.running_mean",
        "norm.running_var",
        "seen_mean",
        "steps_done",
    ]


def presence(training: Training) -> dict[str, bool]:
    step = training.state.step + 1
    entries = training.state.layout.entries
    flags = unpack_presence(training.computer.compute(step, 4).present_bits, len(entries))
    return {entry.name: flag for entry, flag in zip(entries, flags, strict=True)}


def test_parameter_unused_in_odd_steps_has_a_gradient_in_even_ones_only() -> None:
    """pytorch/pytorch#22049: fine on one process, an error in the second step of several."""
    assert [presence(everything(steps=steps))["even_steps"] for steps in range(4)] == [False, True, False, True]
    job = zoo.job("Everything", steps=4)
    assert run_split(job, [owner_runs([3], 8)] * 4) == oracle.run_undisturbed(job)


@pytest.mark.parametrize("optimizer", zoo.OPTIMIZERS)
def test_parameter_without_a_gradient_is_moved_by_neither_decay_nor_momentum(optimizer: str) -> None:
    """pytorch/pytorch#28294: a zero gradient in place of none let weight decay and momentum move it."""
    training = everything(optimizer)
    moved = []
    for _ in range(4):
        before = {name: p.clone() for name, p in training.state.model.named_parameters()}
        oracle.take_step(training)
        after = dict(training.state.model.named_parameters())
        moved.append({name for name in before if not torch.equal(before[name], after[name])})
    assert all("never" not in names for names in moved)
    assert all("frozen.weight" not in names for names in moved)
    assert ["even_steps" in names for names in moved] == [False, True, False, True]
    assert all({"head.weight", "mix.weight"} <= names for names in moved)


def test_gradient_of_the_record_is_that_of_one_plain_backward_over_the_global_batch() -> None:
    """pytorch/torchtitan#2206: the mean of per-rank means weighs ranks with fewer items too much."""
    job = zoo.job("Tiny", codec="exact", global_batch=8)
    training = build_training(job)
    data, _ = oracle.take_step(training)
    one = run_split(job, [owner_runs([3], 8)])  # ranks with 3 and 5 samples
    assert one == oracle.run_undisturbed(job)[:1]
    record = Record.parse(data)
    summed = torch.from_numpy(np.frombuffer(record.payload, dtype=np.float32).copy())
    plain = build_training(job)
    samples = [plain.source.batch(1, shard) for shard in range(8)]
    model = plain.state.model
    logits = model(torch.cat([batch.features for batch in samples]))
    F.cross_entropy(logits, torch.cat([batch.label for batch in samples]), reduction="mean").backward()
    for entry, view in zip(training.state.layout.entries, training.state.layout.views(summed), strict=True):
        torch.testing.assert_close(view / record.items, model.get_parameter(entry.name).grad, rtol=1e-5, atol=1e-6)


def recipe_with(loss: Any) -> Recipe:
    class Changed(zoo.Tiny):
        def loss(self, model: nn.Module, batch: Any) -> LossSum:
            return cast(LossSum, loss(model, batch))

    return Changed()


def compute_with(loss: Any, shard: int = 0) -> ShardResult:
    training = build_training(zoo.job("Tiny"))
    return ShardComputer(recipe_with(loss), training.state, training.source, 0).compute(1, shard)


SCALAR = torch.zeros((), requires_grad=True)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (SCALAR, "returned Tensor; return LossSum"),
        ((SCALAR, 1), "returned tuple; return LossSum"),
        (None, "returned NoneType"),
        (LossSum(torch.zeros(3, requires_grad=True), 3), r"of shape \(3,\), not a floating scalar"),
        (LossSum(torch.tensor(1), 1), "torch.int64"),
        (LossSum(cast(Tensor, 0.5), 1), "a loss that is float"),
        (LossSum(SCALAR, cast(int, torch.tensor(1))), r"items=tensor\(1\), not a count"),
        (LossSum(SCALAR, 1.0), "items=1.0"),  # type: ignore[arg-type]
        (LossSum(SCALAR, True), "items=True"),
        (LossSum(SCALAR, -1), "items=-1"),
        (LossSum(SCALAR.detach(), 1), "depends on no trainable parameter"),
    ],
)
def test_loss_that_is_no_sum_with_a_count_is_refused_with_the_remedy(result: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        checked_loss(result)


def test_loss_that_is_not_finite_is_a_fact_and_no_error() -> None:
    def loss(model: nn.Module, batch: Any) -> LossSum:
        return LossSum(model(batch.features).sum() * float("inf"), 2)

    result = compute_with(loss)
    assert not np.isfinite(result.loss)
    assert not torch.isfinite(result.gradient).all()


def test_shard_without_items_adds_nothing() -> None:
    def loss(model: nn.Module, batch: Any) -> LossSum:
        return LossSum(model(batch.features)[:0].mean(), 0)  # NaN

    result = compute_with(loss)
    assert (result.loss, result.items) == (0.0, 0)
    assert not result.gradient.any()
    assert not any(result.present_bits)


def test_error_in_the_forward_passes_and_leaves_the_state_as_it_was() -> None:
    training = build_training(zoo.job("Raises", recipe_args={"step": 1}))
    before = training.state.digests()
    with pytest.raises(ValueError, match="the recipe's own mistake"):
        training.computer.compute(1, 0)
    assert training.state.digests() == before
    assert all(parameter.grad is None for parameter in training.state.model.parameters())


class Embedding(zoo.Tiny):
    sparse = False

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(50, 4, sparse=self.sparse), nn.Flatten(), nn.LazyLinear(4))

    def loss(self, model: nn.Module, batch: Any) -> LossSum:
        logits = model(torch.stack([batch.index, batch.index % 5, batch.index % 5], dim=1))
        return LossSum(F.cross_entropy(logits, batch.label, reduction="sum"), len(batch.label))


class SparseEmbedding(Embedding):
    sparse = True


def test_sparse_gradient_counts_as_the_dense_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for recipe in (Embedding, SparseEmbedding):
        monkeypatch.setattr(recipe, "model", _run_once(recipe.model))
        monkeypatch.setattr(zoo, recipe.__name__, recipe, raising=False)
    dense, sparse = (build_training(zoo.job(name)) for name in ("Embedding", "SparseEmbedding"))
    assert facts(dense.computer.compute(1, 2)) == facts(sparse.computer.compute(1, 2))


def _run_once(model: Any) -> Any:
    def materialised(self: Recipe) -> nn.Module:
        made: nn.Module = model(self)
        made(torch.zeros(1, 3, dtype=torch.int64))
        return made

    return materialised


class Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(zoo.FEATURES, zoo.CLASSES)
        self.register_buffer("history", torch.zeros(1))

    def forward(self, features: Tensor) -> Tensor:
        self.history = torch.cat([self.get_buffer("history"), features.detach().mean().view(1)])
        return self.layer(features)  # type: ignore[no-any-return]


class Grows(zoo.Tiny):
    def model(self) -> nn.Module:
        return Growing()


def test_buffer_that_changes_its_shape_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "Grows", Grows, raising=False)
    training = build_training(zoo.job("Grows"))
    with pytest.raises(RunError, match="buffer 'history'"):
        training.computer.compute(1, 0)
    assert training.state.model.get_buffer("history").shape == (1,)
