"""The recovery machine in a world where anything may die, hang, come late or come twice at any moment."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from recovery_world import Agent, Rank, World

from openclaw_tasks.recovery import machine
from openclaw_tasks.recovery.machine import MAX_FAILED_STARTS, Phase

T = TypeVar("T")

# What the machine may be told again. (An agent's name comes and goes once.)
REPEATABLE = (
    machine.RankReady,
    machine.RankGone,
    machine.RankHung,
    machine.RankLeft,
    machine.LinkBroken,
    machine.Meshed,
    machine.StepDone,
)

# Things that go wrong, and what somebody does about it: each takes two numbers that choose whom it hits and how.


def kill_a_rank(world: World, which: int, how: int) -> None:
    """Of what it was just sending each peer may or may not get its part: a bit of `how` each."""
    world.lost_mask = how
    hit(world.ranks(), which, world.kill_rank)


def hang_a_rank(world: World, which: int, how: int) -> None:
    hit(world.ranks(), which, lambda rank: setattr(rank, "hung", True))


def report_a_rank_as_hung(world: World, which: int, how: int) -> None:
    """Rightly or, if it is only slow, wrongly."""
    hit(world.ranks(), which, world.report_hung)


def kill_an_agent(world: World, which: int, how: int) -> None:
    world.lost_mask = how
    hit(living_agents(world), which, lambda agent: world.kill_agent(agent, unsent=how % 4))


def give_up_an_agent_whose_rank_goes_on(world: World, which: int, how: int) -> None:
    hit(living_agents(world), which, world.silence_agent)


def end_ranks_at_their_lease(world: World, which: int, how: int) -> None:
    for rank in world.ranks():
        if not rank.agent.alive:
            world.kill_rank(rank)


def break_a_link(world: World, which: int, how: int) -> None:
    if world.meshes:
        generation = max(world.meshes)
        members = world.meshes[generation].members
        world.break_link(generation, members[which % len(members)], members[how % len(members)])


def part_two_places(world: World, which: int, how: int) -> None:
    names = sorted(world.agents)
    pair = frozenset((names[which % len(names)], names[how % len(names)]))
    if len(pair) == 2:
        world.cuts.add(pair)


def mend_the_network(world: World, which: int, how: int) -> None:
    world.cuts.clear()


def repeat_an_event(world: World, which: int, how: int) -> None:
    if isinstance(event := world.fed[-1 - (which + how) % len(world.fed)], REPEATABLE):
        world.feed(event)


def bring_an_agent(world: World, which: int, how: int) -> None:
    if len(living_agents(world)) < 5:
        world.add_agent()


def retry_the_stage(world: World, which: int, how: int) -> None:
    if world.state.phase is Phase.LOST:
        world.restart()


def request_a_stop(world: World, which: int, how: int) -> None:
    """Now and then."""
    if how % 8 == 0 and world.newest_applied > 3:
        world.feed(machine.StopRequested())


def give_up(world: World, which: int, how: int) -> None:
    """Now and then: the records that come next are gone."""
    if how % 8 == 0:
        world.feed(machine.GaveUp("nobody holds the next records"))


TURNS = (
    *[kill_a_rank] * 3,
    *[bring_an_agent] * 2,
    *[report_a_rank_as_hung] * 2,
    hang_a_rank,
    kill_an_agent,
    give_up_an_agent_whose_rank_goes_on,
    end_ranks_at_their_lease,
    break_a_link,
    part_two_places,
    mend_the_network,
    repeat_an_event,
    retry_the_stage,
    request_a_stop,
    give_up,
)


def hit(things: Sequence[T], which: int, do: Callable[[T], object]) -> None:
    if things:
        do(things[which % len(things)])


def living_agents(world: World) -> list[Agent]:
    return [agent for agent in world.agents.values() if agent.alive]


# What must hold


def check_the_books(world: World) -> None:
    """Beside what the world itself asserts as things happen."""
    state = world.state
    numbers = [member.number for member in state.members]
    assert numbers == sorted(set(numbers))
    assert len(numbers) <= state.policy.workers
    assert len({member.agent for member in state.members}) == len(numbers)
    assert {member.agent for member in state.members} <= set(state.agents)
    for formation in filter(None, (state.active, state.joining)):
        for runs in (formation.runs, formation.open_runs):
            assert [lo for lo, _ in runs] == [0, *(hi for _, hi in runs[:-1])]
            assert runs[-1][1] == state.policy.shards
            assert len(runs) == len(formation.members)
    for rank in world.ranks():
        assert rank.applied == sorted(set(rank.applied)), f"member {rank.number} applied a step twice"


def must_settle(world: World) -> None:
    """Left in peace, with one more agent, all living ranks train on in one formation, or have left in order."""
    world.lost_mask = 0
    world.add_agent()
    before = world.newest_applied

    def has_settled() -> bool:
        ranks = world.ranks()
        if world.state.phase is Phase.ENDED:
            return not ranks
        active = world.state.active
        return (
            world.state.phase is Phase.RUNNING
            and active is not None
            and len(ranks) == wanted_ranks(world.state)
            and {rank.number for rank in ranks} == {member.number for member in active.members}
            and {rank.generation for rank in ranks} == {active.generation}
            and steps_agree(ranks)
            and world.newest_applied >= before + 5
        )

    assert world.calm_down(400, has_settled), f"never settles: {world.state}"


def wanted_ranks(state: machine.State) -> int:
    busy = {member.agent for member in state.members}
    usable = [agent for agent in state.agents if agent in busy or state.failed_starts.count(agent) < MAX_FAILED_STARTS]
    return min(state.policy.workers, len(usable))


def steps_agree(ranks: list[Rank]) -> bool:
    """Some may have applied the step that others are just about to."""
    steps = [rank.step for rank in ranks]
    return max(steps) - min(steps) <= 1


# Two drivers: one that finds the smallest story of a failure, and one that tells many long ones


class RecoveryWorld(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(1)

    @initialize(workers=st.integers(1, 4), spares=st.integers(0, 1), rounds=st.integers(0, 30), short=st.booleans())
    def begin(self, workers: int, spares: int, rounds: int, short: bool) -> None:
        self.world = World(workers, total_steps=20 if short else 1_000_000)
        for _ in range(workers + spares):
            self.world.add_agent()
        for _ in range(rounds):
            self.world.move_all()

    def teardown(self) -> None:
        must_settle(self.world)

    @rule(which=st.integers(0, 5))
    def an_agents_message_arrives(self, which: int) -> None:
        hit(list(self.world.agents.values()), which, self.world.deliver_up)

    @rule(which=st.integers(0, 5))
    def an_order_arrives(self, which: int) -> None:
        hit(list(self.world.agents.values()), which, self.world.deliver_down)

    @rule(which=st.integers(0, 5), breathe_first=st.booleans())
    def a_rank_moves(self, which: int, breathe_first: bool) -> None:
        hit(self.world.ranks(), which, lambda rank: self.world.resume(rank, breathe_first))

    @rule(rounds=st.integers(1, 20), forwards=st.booleans())
    def everybody_moves(self, rounds: int, forwards: bool) -> None:
        for _ in range(rounds):
            self.world.move_all(forwards)

    @rule(seconds=st.sampled_from([0.01, 0.05, 0.2]))
    def time_goes_on(self, seconds: float) -> None:
        self.world.tick(seconds)

    @rule(turn=st.sampled_from(TURNS), which=st.integers(0, 15), how=st.integers(0, 63))
    def something_happens(self, turn: Callable[[World, int, int], None], which: int, how: int) -> None:
        turn(self.world, which, how)

    @invariant()
    def the_books_are_in_order(self) -> None:
        check_the_books(self.world)


TestRecoveryWorld = RecoveryWorld.TestCase
TestRecoveryWorld.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)


def live_through(seed: int) -> World:
    """A long story, the same for the same seed."""
    chance = random.Random(seed)
    world = World(chance.randint(1, 4), total_steps=chance.choice([25, *[1_000_000] * 4]))
    for _ in range(world.state.policy.workers + chance.randint(0, 1)):
        world.add_agent()
    often = chance.choice([0.005, 0.015, 0.04, 0.1])
    pace = chance.choice(["one", "all", "both"])
    for _ in range(chance.randint(50, 800)):
        if chance.random() < often:
            turn = chance.choice(TURNS)
            turn(world, chance.randrange(16), chance.randrange(64))
            check_the_books(world)
        elif pace == "all" or (pace == "both" and chance.random() < 0.2):
            world.move_all(chance.random() < 0.5)
            world.tick(chance.choice([0.0, 0.01, 0.03]))
        else:
            match chance.choice(["up", "up", "up", "down", "down", "down", "tick", *["rank"] * 8]):
                case "up":
                    hit(list(world.agents.values()), chance.randrange(16), world.deliver_up)
                case "down":
                    hit(list(world.agents.values()), chance.randrange(16), world.deliver_down)
                case "rank" if ranks := world.ranks():
                    world.resume(chance.choice(ranks), breathe_first=chance.random() < 0.3)
                case "tick":
                    world.tick(chance.choice([0.01, 0.03, 0.1]))
    return world


@pytest.mark.parametrize("block", range(8))
def test_the_gang_gets_over_whatever_happens(block: int) -> None:
    for seed in range(block * 150, (block + 1) * 150):
        try:
            must_settle(live_through(seed))
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
