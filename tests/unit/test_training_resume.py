"""A run that goes on from a snapshot or from its records, in a new process, equals the undisturbed one."""

from __future__ import annotations

import functools

import oracle
import pytest
import zoo
from split_run import owner_runs, run_split

from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.exact.apply import apply
from openclaw_tasks.exact.record import Record
from openclaw_tasks.training.build import Training, build_training


@functools.cache
def undisturbed(recipe: str, optimizer: str, steps: int) -> list[oracle.StepFacts]:
    return oracle.run_undisturbed(job_of(recipe, optimizer, steps))


def job_of(recipe: str, optimizer: str = "adamw", steps: int = 12) -> TrainJob:
    return zoo.job(recipe, recipe_args={"optimizer": optimizer, "samples": 48}, steps=steps)


def from_snapshot(job: TrainJob, step: int) -> Training:
    before = build_training(job)
    for _ in range(step):
        oracle.take_step(before)
    after = build_training(job)
    after.state.restore(before.state.snapshot())
    return after


def from_records(job: TrainJob, step: int) -> Training:
    training = build_training(job)
    for record, _ in zip(oracle.undisturbed_records(job), range(step), strict=False):
        apply(training.state, Record.parse(record))
    return training


@pytest.mark.parametrize("resume", [from_snapshot, from_records])
@pytest.mark.parametrize("optimizer", zoo.OPTIMIZERS)
@pytest.mark.parametrize("step", [3, 6])
def test_run_gone_on_with_equals_the_undisturbed_one(resume: object, optimizer: str, step: int) -> None:
    """An epoch is three steps here, so both are kills at an epoch's end (verl-project/verl#7401)."""
    job = job_of("Everything", optimizer)
    training = resume(job, step)  # type: ignore[operator]
    facts = [oracle.take_step(training)[1] for _ in range(step, job.steps)]
    assert facts == undisturbed("Everything", optimizer, 12)[step:]
    assert facts[-1].step == job.steps


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_learning_rate_depends_on_applied_updates_alone(ranks: int) -> None:
    """huggingface/accelerate#662: warm-up ran N times faster with N ranks."""
    job = job_of("Tiny", steps=8)
    cuts = [8 * rank // ranks for rank in range(1, ranks)]
    facts = run_split(job, [owner_runs(cuts, 8)] * 8)
    recipe = build_training(job).recipe
    assert [fact.lr for fact in facts] == [(0.01 * recipe.schedule(applied),) for applied in range(8)]


class Milestones(zoo.Tiny):
    """A tenth of the learning rate from update 4 on: right at the snapshot."""

    def schedule(self, applied: int) -> float:
        return 1.0 if applied < 4 else 0.1


@pytest.mark.parametrize("recipe", ["Tiny", "Milestones"])
def test_learning_rate_is_not_one_step_behind_after_a_resume(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning-AI/pytorch-lightning#1772: the snapshot was taken before the scheduler's step."""
    monkeypatch.setattr(zoo, "Milestones", Milestones, raising=False)
    job = job_of(recipe, steps=8)
    training = from_snapshot(job, 4)
    resumed = [oracle.take_step(training)[1].lr for _ in range(4)]
    assert resumed == [fact.lr for fact in oracle.run_undisturbed(job)[4:]]
    if recipe == "Milestones":
        assert resumed == [(0.01 * 0.1,)] * 4


def test_step_that_is_not_finite_is_skipped_and_moves_no_learning_rate() -> None:
    """Lightning-AI/pytorch-lightning#18828: the schedule moved on although the update was left out."""
    job = zoo.job("NotFinite", recipe_args={"sample": 11}, steps=6)  # once an epoch of three steps
    facts = oracle.run_undisturbed(job)
    struck = [fact.step for fact in facts if any(index == 11 for _, index in fact.samples)]
    assert len(struck) == 2
    assert [fact.applied for fact in facts] == [fact.step - sum(step <= fact.step for step in struck) for fact in facts]
    schedule = build_training(job).recipe.schedule
    updates = [fact for fact in facts if fact.step not in struck]
    assert [fact.lr for fact in updates] == [(0.01 * schedule(applied),) for applied in range(4)]
    training = build_training(job)
    for record in oracle.undisturbed_records(job):
        apply(training.state, Record.parse(record))
    assert training.state.state_digest() == facts[-1].state_digest
