"""One logical shard's forward and backward: a pure function of the step-start state and (seed, step, shard).

Computing leaves the state as it was, buffers too: what a shard does to them is in its result, so that shards
may be computed in any order, again, or elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from openclaw_tasks.exact.buffers import changed_buffers, copy_buffers, restore_buffers
from openclaw_tasks.exact.record import BufferChange
from openclaw_tasks.exact.seeding import seed_shard
from openclaw_tasks.exact.state import TrainState
from openclaw_tasks.recipes.recipe import LossSum, Recipe
from openclaw_tasks.training.data import ShardSource


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What one shard contributes to a step.

    `gradient`: float32 of the layout's numel, the caller's own, summed over the shard's items, zero where a
    parameter had none. `present_bits`: a record's mask of the parameters that had one. `loss`: summed over
    `items`. `changed_buffers`: the buffers that the forward changed, as it left them.
    """

    gradient: Tensor
    present_bits: bytes
    loss: float
    items: int
    changed_buffers: tuple[BufferChange, ...]


class ShardComputer:
    """Computes shards of the step after the last one that `state` has taken."""

    def __init__(self, recipe: Recipe, state: TrainState, source: ShardSource, seed: int) -> None:
        self._recipe = recipe
        self._state = state
        self._source = source
        self._seed = seed

    def compute(self, step: int, shard: int) -> ShardResult:
        """Forward and backward of one shard.

        A shard may have no items (all of its samples masked): it then adds nothing, whatever its loss is.
        Raises TypeError, naming the remedy, for a loss that is not a `LossSum` of a scalar and a count;
        RunError for a buffer that changes its shape or dtype. What the user's code raises passes.
        """
        assert step == self._state.step + 1
        batch = self._source.batch(step, shard)
        with step_start_buffers(self._state.model) as before:
            seed_shard(self._seed, step, shard)
            try:
                loss, items = checked_loss(self._recipe.loss(self._state.model, batch))
                if items:
                    loss.backward()
                gradient, present_bits = self._collect()
            finally:
                self._state.drop_gradients()
            changes = changed_buffers(before, self._state.model)
        return ShardResult(gradient, present_bits, float(loss.detach()) if items else 0.0, items, changes)

    def _collect(self) -> tuple[Tensor, bytes]:
        """Copy the gradients into a new flat vector: one read and one write an element.

        Copied rather than accumulated in place by autograd, which could not tell no gradient from a zero one.
        """
        flat = torch.empty_like(self._state.gradient)
        last = self._state.layout.entries[-1]
        flat[last.offset + last.numel :].zero_()
        return flat, self._state.collect_gradients(flat)


def checked_loss(result: object) -> LossSum:
    """What `Recipe.loss` returned, if it is what it must be. Raises TypeError naming the remedy."""
    remedy = "return LossSum(loss=the loss summed over the items, items=their number)"
    if not isinstance(result, LossSum):
        raise TypeError(f"Recipe.loss returned {type(result).__name__}; {remedy}")
    loss, items = result
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        what = f"{loss.dtype} of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise TypeError(f"Recipe.loss returned a loss that is {what}, not a floating scalar tensor; {remedy}")
    if type(items) is not int or items < 0:
        raise TypeError(f"Recipe.loss returned items={items!r}, not a count; {remedy} as an int")
    if items and not loss.requires_grad:
        raise TypeError(
            "Recipe.loss returned a loss that depends on no trainable parameter; "
            "compute it from the model, without detach() or no_grad()"
        )
    return result


@contextmanager
def step_start_buffers(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Give copies of the buffers as they are, and put all back at the end.

    Covers buffers changed in place and buffers that a module assigned anew, persistent or not.
    """
    slots = [(module, key, tensor) for module in model.modules() for key, tensor in module._buffers.items()]
    before = copy_buffers(model)
    try:
        yield before
    finally:
        for module, key, tensor in slots:
            module._buffers[key] = tensor
        restore_buffers(model, before)
