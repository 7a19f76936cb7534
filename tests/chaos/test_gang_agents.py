"""Agents and launchers that die: their ranks go with them, what they held others hold too, others take their place."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from gang_runs import GangRuns, Scene, assert_exact, wait_until_gone, world_sizes

from openclaw_tasks.gang.placing import WarmAgents

pytestmark = pytest.mark.chaos

SLOWLY = {"pause_seconds": 0.002}


def test_an_agent_that_is_killed_is_replaced_and_its_replacement_is_at_work(gang: GangRuns) -> None:
    """pytorch/pytorch#67742: one node's end does not end the gang, and the place is filled again."""
    rank = gang.rng.randrange(2)

    def watch(scene: Scene) -> None:
        scene.wait("agent-lost")
        scene.wait_for_newcomers()
        scene.hurry()

    job = gang.job("Everything", workers=2, recipe_args=gang.crawl(), steps=120, segment_steps=24)
    outcome = gang.run(job, f"kill-agent:{rank}@4", disturb=watch)
    report = assert_exact(outcome)
    assert outcome.causes() == ["start", "agent lost", "join"]
    assert [(recovery.step, recovery.cause) for recovery in report.recoveries] == [(4, "agent lost")]
    assert [ranks for _, ranks in world_sizes(report)] == [2, 1, 2]


def test_an_agent_killed_from_outside_takes_its_rank_along(gang: GangRuns) -> None:
    """clemsgrs/slide2vec#131: no rank outlives the agent that watches it."""
    pids: list[int] = []

    def kill(scene: Scene) -> None:
        scene.wait("step", step=5)
        scene.pass_a_moment()
        pids.extend([scene.agent(1), scene.launcher(1), scene.pid(1)])
        scene.strike(scene.agent(1))

    job = gang.job("Everything", workers=2, recipe_args=SLOWLY, steps=24)
    outcome = gang.run(job, disturb=kill)
    assert_exact(outcome)
    assert len(outcome.of("agent-lost")) == 1
    wait_until_gone(pids, 2.0)


def test_a_launcher_that_is_killed_costs_its_place_only(gang: GangRuns) -> None:
    """A rank dies with its launcher (PR_SET_PDEATHSIG); an agent without one is of no use and is replaced."""

    def kill(scene: Scene) -> None:
        scene.wait("step", step=5)
        scene.pass_a_moment()
        scene.strike(scene.launcher(1))

    job = gang.job("Everything", workers=2, recipe_args=SLOWLY, steps=24)
    outcome = gang.run(job, disturb=kill)
    assert_exact(outcome)
    assert len(outcome.of("agent-lost")) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_agent_that_is_asked_to_end_costs_its_place_only(gang: GangRuns, number: signal.Signals) -> None:
    """pytorch/pytorch#67742: SIGTERM to one node's agent. Ctrl-C is the supervisor's to handle: agents ignore it."""

    def ask(scene: Scene) -> None:
        scene.wait("step", step=5)
        scene.strike(scene.agents()[1], number)

    job = gang.job(workers=2, recipe_args=SLOWLY, steps=24)
    outcome = gang.run(job, disturb=ask)
    assert_exact(outcome)
    assert len(outcome.of("agent-lost")) == (1 if number is signal.SIGTERM else 0)


def test_a_frozen_agent_is_given_up_at_its_lease(gang: GangRuns) -> None:
    """A right is a lease: its rank, which still computes, is not believed any more and ends by itself."""

    def freeze(scene: Scene) -> None:
        scene.wait("step", step=5)
        agent = scene.agents()[1]
        scene.strike(agent, signal.SIGSTOP)
        scene.wait("agent-lost")
        scene.strike(agent, signal.SIGCONT)
        scene.hurry()

    lease = {"lease": 2.0}
    job = gang.job("Everything", workers=2, recipe_args=gang.crawl(), steps=80, segment_steps=20, fault_tolerance=lease)
    outcome = gang.run(job, disturb=freeze)
    assert_exact(outcome)
    assert "silent for 2 s" in outcome.of("agent-lost")[0]["reason"]


def test_every_agent_but_one_killed_at_once_changes_no_bit(gang: GangRuns) -> None:
    survivor = gang.rng.randrange(3)

    def kill(scene: Scene) -> None:
        scene.wait("step", step=5)
        scene.pass_a_moment()
        for place, agent in enumerate(scene.agents()):
            if place != survivor:
                scene.strike(agent)

    job = gang.job("Everything", workers=3, recipe_args=SLOWLY, steps=24)
    outcome = gang.run(job, disturb=kill)
    assert_exact(outcome)
    assert outcome.of("gang-lost") == []


def test_every_agent_killed_at_once_costs_only_what_was_not_durable(gang: GangRuns) -> None:
    """Nobody holds a record any more: a fresh gang on fresh agents starts from storage."""

    def kill(scene: Scene) -> None:
        scene.wait("step", step=9)
        for agent in scene.agents():
            scene.strike(agent)

    job = gang.job("Everything", workers=gang.rng.choice([1, 2]), recipe_args={"pause_seconds": 0.01})
    outcome = gang.run(job, disturb=kill)
    assert_exact(outcome, steps_lost=10)
    assert len(outcome.of("gang-lost")) == 1


def test_the_first_base_lost_with_its_agent_is_made_again(gang: GangRuns) -> None:
    """Without a base nothing may be put: a run whose first base is lost must not wait for it for ever."""
    job = gang.job("Everything", workers=2, steps=16)
    outcome = gang.run(job, "kill-agent:0@1")
    assert_exact(outcome)
    assert 0 in [event["step"] for event in outcome.of("base")]


def test_a_segments_base_lost_with_its_agent_is_made_from_the_log(gang: GangRuns) -> None:
    """KempnerInstitute/KempnerForge#102: the copy that was to be put is gone; compaction makes the same base."""

    def kill(scene: Scene) -> None:
        scene.wait("step", step=6)
        agent = scene.agent(0)  # rank 0 makes the copy
        scene.wait("boundary", step=8)
        scene.strike(agent)

    job = gang.job("Everything", workers=2, recipe_args=SLOWLY, steps=16, segment_steps=8)
    outcome = gang.run(job, disturb=kill, prove=True)
    report = assert_exact(outcome)
    assert report.verified_steps == (8, 16)


def test_an_agent_killed_as_the_run_ends_changes_nothing(gang: GangRuns) -> None:
    """verl-project/verl#7401: the last step is done, whoever was to report it."""

    def kill(scene: Scene) -> None:
        scene.wait("step", step=12)
        scene.pass_a_moment(0.01)
        scene.strike(gang.rng.choice(scene.agents()))

    assert_exact(gang.run(gang.job(workers=3), disturb=kill))


def test_without_the_hosts_zygote_an_agent_starts_one_of_its_own(gang: GangRuns, tmp_path: Path) -> None:
    """Ranks go on when it is killed; the next agent does not find it, and does without."""

    def kill(scene: Scene) -> None:
        scene.wait("step", step=5)
        scene.strike(agents.zygote_pid)
        scene.strike(scene.agent(1))
        scene.wait("agent-lost")
        scene.wait_for_newcomers()
        scene.hurry()

    with WarmAgents(tmp_path / "agents") as agents:
        job = gang.job("Everything", workers=2, recipe_args=gang.crawl(), steps=120, segment_steps=24)
        outcome = GangRuns(agents, tmp_path, gang.rng).run(job, disturb=kill)
    assert_exact(outcome)
    assert outcome.causes() == ["start", "agent lost", "join"]
