"""Whoever owns which shards, in whatever order they compute them: the bits are those of one process."""

from __future__ import annotations

import functools

import oracle
import pytest
import zoo
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from split_run import owner_runs, run_split

STEPS = 4
SHARDS = 8

maps = st.lists(
    st.lists(st.integers(0, SHARDS), max_size=4).map(lambda cuts: owner_runs(cuts, SHARDS)),
    min_size=STEPS,
    max_size=STEPS,
)


@functools.cache
def undisturbed(recipe: str, optimizer: str, codec: str) -> list[oracle.StepFacts]:
    return oracle.run_undisturbed(zoo.job(recipe, recipe_args={"optimizer": optimizer}, codec=codec, steps=STEPS))


@pytest.mark.parametrize("codec", ["exact", "bf16", "int8"])
@pytest.mark.parametrize(
    ("recipe", "optimizer"),
    [
        ("Tiny", "adamw"),
        ("Tiny", "sgd"),
        ("Tiny", "adafactor"),
        ("Everything", "adamw"),
        ("Everything", "sgd"),
    ],
)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(owners_of_steps=maps)
def test_any_owners_give_the_bits_of_one_process(
    recipe: str, optimizer: str, codec: str, owners_of_steps: list[list[range]]
) -> None:
    job = zoo.job(recipe, recipe_args={"optimizer": optimizer}, codec=codec, steps=STEPS)
    assert run_split(job, owners_of_steps) == undisturbed(recipe, optimizer, codec)
