"""Failures during recoveries: whatever dies while others form anew, join or catch up, the bits stay the same."""

from __future__ import annotations

import signal

import pytest
from gang_runs import ROUNDS, GangRuns, Scene, assert_exact, world_sizes

pytestmark = pytest.mark.chaos

SLOWLY = {"pause_seconds": 0.002}
KILLED = "rank killed by signal 9"
# Some megabytes of state: handing it to a newcomer takes long enough to be interrupted.
LARGE = {"width": 60_000, "optimizer": "sgd"}


def _strike_if_there(scene: Scene, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    try:
        scene.strike(pid, number)
    except ProcessLookupError:
        scene.struck.append(f"{pid} had gone already")


@pytest.mark.parametrize("attempt", range(3 * ROUNDS))
def test_a_rank_killed_while_the_others_form_anew_changes_no_bit(gang: GangRuns, attempt: int) -> None:
    first, second = gang.rng.sample(range(4), 2)

    def kill(scene: Scene) -> None:
        scene.wait("step", step=4)
        one, other = scene.pid(first), scene.pid(second)
        scene.strike(one)
        scene.wait("generation", cause=KILLED)
        scene.pass_a_moment(0.01)
        scene.strike(other)

    job = gang.job("Everything", workers=4, recipe_args=SLOWLY, steps=24)
    # The two may have been the only ones that had done the last step: nobody lives to hand it on.
    report = assert_exact(gang.run(job, disturb=kill), steps_lost=1)
    assert [recovery.cause for recovery in report.recoveries] == [KILLED] * 2


def test_a_rank_frozen_while_the_others_form_anew_changes_no_bit(gang: GangRuns) -> None:
    """meta-pytorch/torchft#164: it sits in the mesh that forms, and answers nobody."""

    def strike(scene: Scene) -> None:
        scene.wait("step", step=4)
        one, other = scene.pid(0), scene.pid(2)
        scene.strike(other, signal.SIGSTOP)
        scene.strike(one)

    job = gang.job("Everything", workers=3, recipe_args=SLOWLY, steps=20)
    report = assert_exact(gang.run(job, disturb=strike))
    assert sorted(str(recovery.cause) for recovery in report.recoveries) == ["frozen", KILLED]


@pytest.mark.parametrize("attempt", range(2 * ROUNDS))
def test_a_newcomer_killed_as_it_starts_changes_no_bit(gang: GangRuns, attempt: int) -> None:
    def kill(scene: Scene) -> None:
        scene.wait("step", step=3)
        scene.strike(scene.pid(1))
        newcomer = scene.wait("rank-started", member=lambda member: member >= 3)["member"]
        scene.pass_a_moment(0.15)  # it builds, or is ready and not yet in
        _strike_if_there(scene, scene.pid_of(newcomer))
        scene.wait_for_newcomers()
        scene.hurry()

    job = gang.job("Everything", workers=3, recipe_args=gang.crawl(), steps=80, segment_steps=20)
    report = assert_exact(gang.run(job, disturb=kill))
    assert world_sizes(report)[0] == (1, 3)
    assert world_sizes(report)[-1][1] == 3


@pytest.mark.parametrize("attempt", range(3 * ROUNDS))
def test_a_newcomer_killed_as_it_joins_changes_no_bit(gang: GangRuns, attempt: int) -> None:
    """The others wait for it in the mesh already: they form anew without it."""

    def kill(scene: Scene) -> None:
        scene.wait("step", step=3)
        scene.strike(scene.pid(gang.rng.randrange(3)))
        newcomer = scene.wait("generation", cause="join")["members"][-1]
        scene.pass_a_moment(0.15 if attempt else 0.0)
        _strike_if_there(scene, scene.pid_of(newcomer))
        scene.wait_for_newcomers()
        scene.hurry()

    job = gang.job("Everything", workers=3, recipe_args=gang.crawl(), steps=80, segment_steps=20)
    outcome = gang.run(job, disturb=kill)
    assert_exact(outcome)
    assert outcome.of("step")[-1]["ranks"] == 3


@pytest.mark.parametrize("who", ["the newcomer", "the source of its state", "both"])
def test_a_kill_during_the_catch_up_changes_no_bit(gang: GangRuns, who: str) -> None:
    """The newcomer takes its state from a living peer: whichever of the two dies, the group goes on."""

    def kill(scene: Scene) -> None:
        scene.wait("step", step=2)
        scene.strike(scene.pid(2))
        scene.wait("generation", cause="join")
        before = scene.wait("step")  # the change comes after a step that all do knowing of it
        source, newcomer = scene.pid(0), scene.pid(-1)
        scene.pass_a_moment(0.05)
        if who != "the source of its state":
            _strike_if_there(scene, newcomer)
        if who != "the newcomer":
            _strike_if_there(scene, source)
        scene.wait("step", step=lambda step: step > before["step"])

    job = gang.job(workers=3, recipe_args={**LARGE, **SLOWLY}, steps=40, segment_steps=20)
    outcome = gang.run(job, disturb=kill)
    assert_exact(outcome)


def test_a_newcomer_that_inherits_everything_changes_no_bit(gang: GangRuns) -> None:
    """All old ranks die as soon as a newcomer holds the state: it goes on alone, and no step is lost."""

    def kill(scene: Scene) -> None:
        scene.wait("step", step=3)
        scene.strike(scene.pid(0))
        scene.wait_for_newcomers()
        for old in scene.members[:-1]:
            scene.strike(scene.pid_of(old))
        scene.wait_for_newcomers(2)
        scene.hurry()

    job = gang.job("Everything", workers=3, recipe_args=gang.crawl(), steps=100, segment_steps=25)
    outcome = gang.run(job, disturb=kill)
    assert_exact(outcome)
    assert outcome.of("gang-lost") == []
    assert outcome.of("step")[-1]["ranks"] == 3


@pytest.mark.parametrize("attempt", range(2 * ROUNDS))
def test_kills_without_end_change_no_bit(gang: GangRuns, attempt: int) -> None:
    """Any rank, at any moment, again and again: while forming, joining, catching up, computing."""

    def kill(scene: Scene) -> None:
        scene.wait("step", step=2)
        for _ in range(8):
            scene.pass_a_moment(0.25)
            scene.catch_up_with_events()
            alive = list(scene.members)
            _strike_if_there(scene, scene.pid_of(gang.rng.choice(alive)))
        scene.hurry()

    job = gang.job("Everything", workers=4, recipe_args=gang.crawl(), steps=120, segment_steps=24)
    outcome = gang.run(job, disturb=kill)
    # The last one alive may be struck: then the steps since the durable one are computed again.
    report = assert_exact(outcome, steps_lost=4 if outcome.of("gang-lost") else 0)
    # Some strikes hit a rank that had not joined yet, or one that had just died.
    assert 1 <= len(report.recoveries) <= 8
