"""Ranks that die or freeze: training goes on from the very step, to the bits of the undisturbed run."""

from __future__ import annotations

import signal

import pytest
from gang_runs import ROUNDS, GangRuns, Scene, assert_exact, world_sizes

pytestmark = pytest.mark.chaos

SLOWLY = {"pause_seconds": 0.002}  # in each shard: a step lasts long enough to be struck in its middle


@pytest.mark.parametrize("attempt", range(3 * ROUNDS))
def test_a_rank_killed_from_outside_at_any_moment_changes_no_bit(gang: GangRuns, attempt: int) -> None:
    """meta-pytorch/torchft#309: a step is all or nothing; what the dead rank had of it is computed by the others."""
    step, rank = gang.rng.randrange(1, 11), gang.rng.randrange(3)
    print(f"rank {rank} is killed after step {step}")

    def kill(scene: Scene) -> None:
        scene.wait("step", step=lambda done: done >= step)
        scene.pass_a_moment()
        scene.strike(scene.pid(rank))

    job = gang.job("Everything", workers=3, recipe_args=SLOWLY, steps=24)
    outcome = gang.run(job, disturb=kill)
    report = assert_exact(outcome)
    (recovery,) = report.recoveries
    assert recovery.cause == "rank killed by signal 9"
    assert world_sizes(report)[:2] == [(1, 3), (recovery.step, 2)]


@pytest.mark.parametrize("attempt", range(3 * ROUNDS))
def test_a_rank_that_kills_itself_in_mid_step_changes_no_bit(gang: GangRuns, attempt: int) -> None:
    """meta-pytorch/torchft#309: the strike comes after half of its slices have been sent."""
    step, rank = gang.rng.randrange(2, 12), gang.rng.randrange(3)
    job = gang.job("Everything", workers=3)
    outcome = gang.run(job, f"kill-rank:{rank}@{step}")
    report = assert_exact(outcome)
    (recovery,) = report.recoveries
    assert (recovery.step, recovery.cause) == (step, "rank killed by signal 9")
    assert world_sizes(report)[:2] == [(1, 3), (step, 2)]
    (fault,) = outcome.of("fault")
    assert fault["text"] == f"kill-rank:{rank}@{step}"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_stopped_from_outside_is_given_up_in_seconds(gang: GangRuns, rank: int) -> None:
    """meta-pytorch/torchft#164: a frozen rank is seen by its progress, not by the collective's timeout."""

    def freeze(scene: Scene) -> None:
        scene.wait("step", step=5)
        scene.pass_a_moment()
        scene.strike(scene.pid(rank), signal.SIGSTOP)

    job = gang.job("Everything", workers=2, recipe_args=SLOWLY, steps=20)
    report = assert_exact(gang.run(job, disturb=freeze))
    (recovery,) = report.recoveries
    assert recovery.cause == "frozen"
    assert recovery.detected_seconds is not None
    assert recovery.detected_seconds < 6.0


def test_a_rank_that_stops_itself_in_mid_step_changes_no_bit(gang: GangRuns) -> None:
    """meta-pytorch/torchft#164: a frozen node's sockets stay open, and its kernel goes on acknowledging."""
    report = assert_exact(gang.run(gang.job("Everything", workers=3), "stop-rank:2@5"))
    (recovery,) = report.recoveries
    assert (recovery.step, recovery.cause) == (5, "frozen")
    assert world_sizes(report)[:2] == [(1, 3), (5, 2)]


def test_two_ranks_killed_at_once_from_outside_change_no_bit(gang: GangRuns) -> None:
    first, second = gang.rng.sample(range(4), 2)

    def kill(scene: Scene) -> None:
        scene.wait("step", step=5)
        scene.pass_a_moment()
        scene.strike(scene.pid(first))
        scene.strike(scene.pid(second))

    job = gang.job("Everything", workers=4, recipe_args=SLOWLY, steps=20)
    report = assert_exact(gang.run(job, disturb=kill))
    assert [recovery.cause for recovery in report.recoveries] == ["rank killed by signal 9"] * 2


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 3)])
def test_two_ranks_that_kill_themselves_in_one_step_change_no_bit(gang: GangRuns, first: int, second: int) -> None:
    faults = [f"kill-rank:{first}@6", f"kill-rank:{second}@6"]
    report = assert_exact(gang.run(gang.job("Everything", workers=4), *faults))
    assert [recovery.step for recovery in report.recoveries] == [6, 6]


@pytest.mark.parametrize("step", [1, 12])
def test_a_rank_killed_in_the_first_or_the_last_step_changes_no_bit(gang: GangRuns, step: int) -> None:
    """verl-project/verl#7401: the run neither ends early nor waits for the dead at its end."""
    for rank in (0, 1):
        report = assert_exact(gang.run(gang.job(workers=2), f"kill-rank:{rank}@{step}"))
        assert [recovery.step for recovery in report.recoveries] == [step]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_killed_as_the_run_ends_changes_nothing(gang: GangRuns, rank: int) -> None:
    """meta-pytorch/torchft#309: at the end nobody waits for ever for a rank that has gone."""

    def kill(scene: Scene) -> None:
        scene.wait("step", step=12)
        scene.pass_a_moment(0.005)
        try:
            scene.strike(scene.pid(rank))
        except ProcessLookupError:
            scene.struck.append("it had left already")

    assert_exact(gang.run(gang.job(workers=3), disturb=kill))


@pytest.mark.parametrize("way", ["from outside", "by its own hand"])
def test_a_lone_rank_that_dies_is_replaced_from_storage(gang: GangRuns, way: str) -> None:
    """No living replica: a fresh rank starts from base and log at the durable step."""

    def kill(scene: Scene) -> None:
        scene.wait("step", step=5)
        scene.pass_a_moment()
        scene.strike(scene.pid(0))

    job = gang.job("Everything", workers=1, recipe_args=SLOWLY)
    outcome = gang.run(job, "kill-rank:0@5") if way == "by its own hand" else gang.run(job, disturb=kill)
    assert_exact(outcome)
    assert len(outcome.of("gang-lost")) == 1
    assert outcome.causes() == ["start", "start"]


@pytest.mark.parametrize("way", ["from outside", "by their own hand"])
def test_a_gang_whose_ranks_all_die_begins_again_from_storage(gang: GangRuns, way: str) -> None:
    """At most the records that were not final are computed again: here the last step, to the same bits."""

    def kill(scene: Scene) -> None:
        scene.wait("step", step=6)
        scene.pass_a_moment()
        for rank in range(3):
            scene.strike(scene.pid(rank))

    faults = [f"kill-rank:{rank}@7" for rank in range(3)]
    job = gang.job("Everything", workers=3, recipe_args=SLOWLY)
    outcome = gang.run(job, *faults) if way == "by their own hand" else gang.run(job, disturb=kill)
    report = assert_exact(outcome, steps_lost=1)
    assert len(outcome.of("gang-lost")) == 1
    assert outcome.causes()[-1] == "start"
    assert {recovery.cause for recovery in report.recoveries} == {"rank killed by signal 9"}


def test_a_replacement_joins_and_is_at_work(gang: GangRuns) -> None:
    """meta-pytorch/torchft#309: the healed replica is not one batch behind, and the global batch never changes."""

    def kill(scene: Scene) -> None:
        scene.wait("step", step=3)
        scene.strike(scene.pid(1))
        scene.wait_for_newcomers()
        scene.hurry()

    job = gang.job("Everything", workers=2, recipe_args=gang.crawl(), steps=60, segment_steps=20)
    outcome = gang.run(job, disturb=kill)
    report = assert_exact(outcome)
    assert outcome.causes() == ["start", "rank killed by signal 9", "join"]
    assert [ranks for _, ranks in world_sizes(report)] == [2, 1, 2]
    assert outcome.of("step")[-1]["ranks"] == 2
