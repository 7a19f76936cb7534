"""A gang's training equals the undisturbed run of one plain loop, bit for bit, whatever its machines are."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import zoo
from gang_runs import GangRuns, Scene, assert_exact, assert_log_exact, undisturbed, wait_until_gone, world_sizes

from openclaw_tasks.errors import NonFiniteError, RecipeStepError

ERROR_SECONDS = 10.0  # "within seconds", on a machine that is busy with other things


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_weights_do_not_depend_on_the_number_of_ranks(gang: GangRuns, ranks: int) -> None:
    """huggingface/accelerate#662, pytorch/torchtitan#2206: sums over items, divided once; LR by applied updates."""
    report = assert_exact(gang.run(gang.job(workers=ranks)))
    assert world_sizes(report) == [(1, ranks)]
    assert report.recoveries == ()


@pytest.mark.parametrize("codec", ["exact", "bf16", "int8"])
def test_every_codec_gives_the_bits_of_one_process(gang: GangRuns, codec: str) -> None:
    """pytorch/pytorch#75666: the optimizer consumes what the log holds, so no codec has a state of its own to lose."""
    assert_exact(gang.run(gang.job(workers=3, codec=codec)))


@pytest.mark.parametrize("optimizer", zoo.OPTIMIZERS)
def test_every_optimizer_gives_the_bits_of_one_process(gang: GangRuns, optimizer: str) -> None:
    """pytorch/pytorch#28294: a parameter without a gradient stays None for AdamW, momentum and Adafactor alike."""
    job = gang.job("Everything", workers=3, recipe_args={"optimizer": optimizer})
    assert_exact(gang.run(job))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_model_with_everything_gives_the_same_bits_on_any_number_of_ranks(gang: GangRuns, ranks: int) -> None:
    """pytorch/pytorch#22049, huggingface/accelerate#1204: unused on odd steps, frozen, tied, dropout, batch norm."""
    assert_exact(gang.run(gang.job("Everything", workers=ranks)))


def test_a_proven_run_reports_each_boundary_as_verified(gang: GangRuns) -> None:
    report = assert_exact(gang.run(gang.job(), prove=True))
    assert report.verified_steps == (4, 8, 12)


def test_a_finished_run_goes_on_when_its_steps_grow(gang: GangRuns) -> None:
    """huggingface/transformers#8878, verl-project/verl#7401: position is absolute, also over an epoch's end."""
    job = gang.job("Everything", workers=2)
    assert_exact(gang.run(job))
    more = job.model_copy(update={"steps": 18})
    outcome = gang.run(more)
    assert_exact(outcome)
    assert outcome.resumed_step() == 12
    assert [event["step"] for event in outcome.of("step")] == list(range(13, 19))


def test_a_finished_run_that_is_started_again_computes_nothing(gang: GangRuns) -> None:
    """PrefectHQ/prefect#15442: completed work is not done again."""
    job = gang.job()
    first = assert_exact(gang.run(job))
    outcome = gang.run(job)
    assert outcome.error is None
    assert outcome.report is not None
    assert outcome.of("step") == []
    assert outcome.report.state_digest == first.state_digest


def test_a_run_goes_on_with_another_number_of_ranks(gang: GangRuns) -> None:
    """bghira/SimpleTuner#2986: which rank has which samples is a matter of the formation, not of the run."""
    job = gang.job("Everything", workers=4, steps=8)
    assert_exact(gang.run(job))
    report = assert_exact(gang.run(job.model_copy(update={"steps": 12, "cluster": gang.job(workers=1).cluster})))
    assert world_sizes(report) == [(1, 4), (9, 1)]


# What is not finite, and what raises


def test_a_step_that_is_not_finite_is_skipped_by_all(gang: GangRuns) -> None:
    """Lightning-AI/pytorch-lightning#18828: one decision for the group, LR by applied updates, a record of the skip."""
    job = gang.job("NotFinite", workers=3, recipe_args={"sample": 5})
    outcome = gang.run(job)
    report = assert_exact(outcome)
    facts = undisturbed(job)
    skips = [fact.step for before, fact in pairwise(facts) if fact.applied == before.applied]
    assert skips, "the job does not skip any step: the test tests nothing"
    assert [event["step"] for event in outcome.of("decision")] == skips
    assert report.applied == job.steps - len(skips)


def test_too_many_skipped_steps_in_a_row_end_the_run(gang: GangRuns) -> None:
    """mlfoundations/open_lm#7: after M bad steps the run stops, and the last good state is kept."""
    limit = {"max_skipped_steps": 3}
    job = gang.job("NotFinite", workers=2, recipe_args={"step": 6}, fault_tolerance=limit)
    outcome = gang.run(job)
    assert isinstance(outcome.error, NonFiniteError)
    assert "max_skipped_steps=3" in str(outcome.error)
    # A rank may have ended the run before the one that reports the steps has told of the last.
    assert [event["step"] for event in outcome.of("decision")] in ([6, 7, 8], [6, 7, 8, 9])
    # The step that ended the run may have become final on some rank before it did.
    again = gang.run(job)
    assert isinstance(again.error, NonFiniteError)
    assert again.resumed_step() in (8, 9)


@pytest.mark.parametrize("ranks", [1, 3])
def test_an_error_of_the_recipe_ends_the_run_within_seconds(gang: GangRuns, ranks: int) -> None:
    """ray-project/ray#29927: the first error, with its rank and traceback, is the run's; nobody waits for the rest."""
    job = gang.job("Raises", workers=ranks, recipe_args={"sample": 5})
    struck = next(fact.step for fact in undisturbed(gang.job()) if any(index == 5 for _, index in fact.samples))
    pids: list[int] = []

    def watch(scene: Scene) -> None:
        for _ in range(ranks):
            pids.append(scene.wait("rank-started")["pid"])

    outcome = gang.run(job, disturb=watch)
    error = outcome.error
    assert isinstance(error, RecipeStepError)
    assert error.step == struck
    assert f"rank {error.rank}" in str(error)
    assert "the recipe's own mistake" in str(error)
    assert "zoo.py" in error.traceback_text
    assert "the recipe's own mistake" in error.traceback_text
    assert len(pids) == ranks
    wait_until_gone(pids, 5.0)
    assert outcome.seconds < ERROR_SECONDS


def test_what_was_done_before_an_error_is_kept(gang: GangRuns) -> None:
    """HarperFast/harper#2016: all that was final when a rank raised is in storage, and the bits are right."""
    job = gang.job("Raises", workers=2, recipe_args={"step": 7})
    outcome = gang.run(job)
    assert isinstance(outcome.error, RecipeStepError)
    kept = outcome.of("durable")[-1]["step"]
    assert kept in (5, 6)  # the record of step 6 is final for a rank that has finished the exchange of step 7
    again = gang.run(job)
    assert isinstance(again.error, RecipeStepError)
    assert again.resumed_step() == kept


def test_a_loss_of_the_wrong_kind_is_an_error_that_says_so(gang: GangRuns) -> None:
    outcome = gang.run(gang.job("BadLoss", recipe_args={"step": 3}))
    assert isinstance(outcome.error, RecipeStepError)
    assert "LossSum" in str(outcome.error)


def test_a_recipe_that_hangs_is_ended_and_reported(gang: GangRuns) -> None:
    """llnl/scr#174, RolnickLab/ami-data-companion#140: a cause that repeats at one step is reported, not retried."""
    job = gang.job("Hangs", workers=2, recipe_args={"step": 6}, fault_tolerance={"lease": 2.0})
    outcome = gang.run(job)
    assert outcome.error is not None
    assert "hung" in str(outcome.error)
    assert "step 6" in str(outcome.error)


def test_every_record_in_storage_is_the_undisturbed_runs(gang: GangRuns, tmp_path: Path) -> None:
    """A record's bytes are a pure function of job and step: two gangs of different sizes leave the same log."""
    for ranks in (1, 3):
        job = gang.job("Everything", workers=ranks, codec="int8")
        assert gang.run(job).error is None
        assert_log_exact(job)
