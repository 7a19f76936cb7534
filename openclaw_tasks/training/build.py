"""From a job to everything a rank, or a verifier, trains and replays with."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.errors import RecipeError
from openclaw_tasks.exact.codecs import codec_named
from openclaw_tasks.exact.fingerprint import arithmetic_fingerprint, set_deterministic
from openclaw_tasks.exact.layout import FlatLayout, unique_parameters
from openclaw_tasks.exact.seeding import seed_shard
from openclaw_tasks.exact.state import TrainState
from openclaw_tasks.recipes.recipe import Recipe, load_recipe, user_code
from openclaw_tasks.recipes.source import recipe_source_fingerprint
from openclaw_tasks.training.compute import ShardComputer
from openclaw_tasks.training.data import ShardSource, dataset_fingerprint

# Steps count from 1: no shard of a step draws the same numbers as what is built before.
_BEFORE_STEPS = 0
_CONSTRUCTION, _MODEL, _DATASET = range(3)


@dataclass(frozen=True, slots=True)
class Training:
    """A job's parts, at step 0.

    `fingerprints`: "recipe" and "data" are digests, "arithmetic" is JSON text.
    """

    recipe: Recipe
    state: TrainState
    source: ShardSource
    computer: ShardComputer
    fingerprints: Mapping[str, str]


def build_training(job: TrainJob) -> Training:
    """Build what the job's recipe says, with its initial state, the same bits in every process.

    Sets the process as `build_state` does. Raises RecipeError in one line for whatever the user's code
    raises, with its exception as the cause.
    """
    recipe, state = build_state(job)
    source, data = _build_source(job, recipe)
    fingerprints = {
        "recipe": recipe_source_fingerprint(recipe),
        "data": data,
        "arithmetic": json.dumps(arithmetic_fingerprint(job.threads_per_rank), sort_keys=True),
    }
    return Training(recipe, state, source, ShardComputer(recipe, state, source, job.seed), fingerprints)


def build_state(job: TrainJob) -> tuple[Recipe, TrainState]:
    """The recipe and the initial state, for which no data is read.

    Sets the process's threads, deterministic flags and generators. Raises RecipeError.
    """
    set_deterministic(job.threads_per_rank)
    seed_shard(job.seed, _BEFORE_STEPS, _CONSTRUCTION)
    recipe = load_recipe(job)
    model = _build_model(job, recipe)
    layout = FlatLayout.of(model)
    optimizer = _build_optimizer(recipe, model, layout)
    _check_schedule(recipe)
    state = TrainState(model, optimizer, layout, codec_named(job.codec), job.clip_norm, recipe.schedule)
    return recipe, state


def _build_model(job: TrainJob, recipe: Recipe) -> nn.Module:
    seed_shard(job.seed, _BEFORE_STEPS, _MODEL)
    with _calling(recipe, "model"):
        model = recipe.model()
    if not isinstance(model, nn.Module):
        raise RecipeError(f"{_name(recipe)}.model() returned {type(model).__name__}; return a torch.nn.Module")
    return model


def _build_optimizer(recipe: Recipe, model: nn.Module, layout: FlatLayout) -> Optimizer:
    trainable = unique_parameters(model)
    with _calling(recipe, "optimizer"):
        optimizer = recipe.optimizer([trainable[entry.name] for entry in layout.entries])
    if not isinstance(optimizer, Optimizer):
        raise RecipeError(
            f"{_name(recipe)}.optimizer() returned {type(optimizer).__name__}; return a torch.optim.Optimizer"
        )
    return optimizer


def _check_schedule(recipe: Recipe) -> None:
    with _calling(recipe, "schedule"):
        factor = recipe.schedule(0)
    if not isinstance(factor, int | float) or not math.isfinite(factor):
        raise RecipeError(f"{_name(recipe)}.schedule(0) returned {factor!r}; return a finite number")


def _build_source(job: TrainJob, recipe: Recipe) -> tuple[ShardSource, str]:
    """The source and the data's fingerprint."""
    seed_shard(job.seed, _BEFORE_STEPS, _DATASET)
    with _calling(recipe, "dataset"):
        dataset = recipe.dataset()
        source = ShardSource(dataset, recipe.collate, job.seed, job.global_batch, job.logical_shards)
        return source, dataset_fingerprint(dataset, job.seed)


def _calling(recipe: Recipe, method: str) -> AbstractContextManager[None]:
    return user_code(f"{_name(recipe)}.{method}()", "mend it, or the job's recipe_args")


def _name(recipe: Recipe) -> str:
    return type(recipe).__name__
