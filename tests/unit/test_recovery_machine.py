"""The recovery machine: lists of events in, lists of instructions out."""

from __future__ import annotations

from openclaw_tasks.recovery.machine import (
    MAX_FAILED_STARTS,
    MAX_REMESHES,
    AgentJoined,
    AgentLost,
    Announce,
    Event,
    Formation,
    GaveUp,
    Instruction,
    KillRank,
    LinkBroken,
    Meshed,
    Phase,
    Policy,
    RankGone,
    RankHung,
    RankLeft,
    RankReady,
    ReportEnded,
    ReportLost,
    Restarted,
    StartRank,
    State,
    StepDone,
    StopRequested,
    TellStop,
    Tick,
    advance,
)

POLICY = Policy(workers=2, shards=8)


class Machine:
    """A machine with what it has said."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.state = State(policy)

    def tell(self, *events: Event) -> list[Instruction]:
        """All instructions that these events bring about."""
        said: list[Instruction] = []
        for event in events:
            self.state, instructions = advance(self.state, event)
            said += instructions
        return said

    @property
    def active(self) -> Formation:
        assert self.state.active is not None
        return self.state.active


def ready(*numbers: int) -> list[Event]:
    return [RankReady(number, ("host", 1000 + number)) for number in numbers]


def meshed(generation: int, *numbers: int) -> list[Event]:
    return [Meshed(number, generation) for number in numbers]


def announced(said: list[Instruction]) -> tuple[int, list[int], str]:
    """Generation, members and time of the only formation that was announced."""
    (formation,) = [instruction.formation for instruction in said if isinstance(instruction, Announce)]
    return formation.generation, [member.number for member in formation.members], formation.when


def training(workers: int = 2, agents: int | None = None) -> Machine:
    """A machine whose first formation (generation 1, members 0, 1, ...) has done a step."""
    machine = Machine(Policy(workers=workers, shards=8))
    machine.tell(*(AgentJoined(f"agent-{i}") for i in range(agents or workers)))
    machine.tell(*ready(*range(workers)), *meshed(1, *range(workers)), StepDone(1))
    assert machine.state.phase is Phase.RUNNING
    return machine


# The start


def test_every_agent_gets_one_rank_up_to_the_wanted_number() -> None:
    machine = Machine()

    assert machine.tell(AgentJoined("a"), AgentJoined("b"), AgentJoined("c")) == [StartRank("a", 0), StartRank("b", 1)]


def test_the_first_formation_waits_until_all_wanted_ranks_are_ready() -> None:
    machine = Machine()
    machine.tell(AgentJoined("a"), AgentJoined("b"))

    assert machine.tell(*ready(1)) == []
    said = machine.tell(*ready(0))

    assert announced(said) == (1, [0, 1], "now")
    assert machine.active.cause == "start"
    assert machine.active.runs == machine.active.open_runs == ((0, 4), (4, 8))
    assert machine.state.phase is Phase.RUNNING


def test_fewer_agents_than_workers_begin_after_the_assembly_time() -> None:
    machine = Machine(Policy(workers=3, shards=8, assemble_seconds=120.0))
    machine.tell(AgentJoined("a"), AgentJoined("b"), *ready(0))

    assert machine.tell(Tick(119.0)) == []
    assert announced(machine.tell(Tick(120.0))) == (1, [0], "now")
    machine.tell(*meshed(1, 0))
    assert announced(machine.tell(*ready(1))) == (2, [0, 1], "boundary")


def test_the_assembly_time_goes_on_while_ranks_are_starting() -> None:
    machine = Machine()

    assert machine.tell(AgentJoined("a"), Tick(500.0)) == [StartRank("a", 0)]
    assert machine.state.phase is Phase.ASSEMBLING


def test_without_any_agent_the_gang_is_lost_after_the_assembly_time() -> None:
    assert Machine().tell(Tick(120.0)) == [ReportLost("no agent came to start a rank on")]


def test_failed_starts_are_bounded_for_each_agent() -> None:
    machine = Machine()
    machine.tell(AgentJoined("a"), AgentJoined("b"))
    starts = 0
    for number in (0, 2, 3):
        said = machine.tell(RankGone(number, "rank killed by signal 9", 1.0))
        starts += said.count(StartRank("a", number + 2 if number == 0 else number + 1))

    assert starts == MAX_FAILED_STARTS - 1
    assert "a" not in {member.agent for member in machine.state.members}


def test_a_gang_of_which_no_rank_can_be_started_is_lost_and_waits_for_nobody() -> None:
    machine = Machine(Policy(workers=1, shards=8))
    machine.tell(AgentJoined("a"))
    said: list[Instruction] = []
    for number in range(MAX_FAILED_STARTS):
        said += machine.tell(RankGone(number, "rank killed by signal 11", 1.0))

    assert said == [
        StartRank("a", 1),
        StartRank("a", 2),
        ReportLost("no rank could be started: rank killed by signal 11"),
    ]


def test_a_rank_that_meshes_clears_its_agents_failed_starts() -> None:
    machine = training()
    machine.tell(RankGone(1, "died", 1.0), *meshed(2, 0))
    machine.tell(RankGone(2, "died early", 2.0), RankGone(3, "died early", 3.0), *ready(4))
    assert machine.state.failed_starts == ("agent-1", "agent-1")

    machine.tell(*meshed(3, 0, 4))

    assert machine.state.failed_starts == ()
    assert StartRank("agent-1", 5) in machine.tell(RankGone(4, "died", 4.0)), "who had meshed has not failed to start"
    assert machine.state.failed_starts == ()


def test_spare_agents_are_used_only_when_a_rank_is_missing() -> None:
    machine = training(workers=2, agents=3)
    assert [member.agent for member in machine.state.members] == ["agent-0", "agent-1"]

    said = machine.tell(AgentLost("agent-1", 5.0))

    assert announced(said) == (2, [0], "now")
    assert StartRank("agent-2", 2) in said


def test_an_agent_that_is_announced_twice_gets_one_rank() -> None:
    machine = Machine()

    assert machine.tell(AgentJoined("a"), AgentJoined("a")) == [StartRank("a", 0)]
    assert machine.state.agents == ("a",)


# Losses


def test_survivors_of_a_death_form_anew_at_once_and_keep_their_open_shards() -> None:
    machine = training(workers=4)

    said = machine.tell(RankGone(1, "rank killed by signal 9", 5.0))

    assert announced(said) == (2, [0, 2, 3], "now")
    assert machine.active.open_runs == ((0, 3), (3, 6), (6, 8))
    assert machine.active.runs == ((0, 2), (2, 5), (5, 8))
    assert said[-1] == StartRank("agent-1", 4)


def test_the_replacement_is_taken_in_at_a_boundary_when_it_is_ready() -> None:
    machine = training()
    machine.tell(RankGone(1, "died", 5.0), *meshed(2, 0), StepDone(2))

    said = machine.tell(*ready(2))

    assert announced(said) == (3, [0, 2], "boundary")
    assert machine.active.generation == 2, "the old formation trains until all have entered the new one"
    machine.tell(*meshed(3, 0, 2))
    assert machine.active.generation == 3


def test_a_replacement_that_is_ready_early_waits_until_the_survivors_have_meshed() -> None:
    machine = training(workers=3)
    machine.tell(RankGone(2, "died", 5.0))

    assert machine.tell(*ready(3), *meshed(2, 0)) == []
    assert announced(machine.tell(*meshed(2, 1))) == (3, [0, 1, 3], "boundary")


def test_who_has_meshed_in_an_older_formation_has_not_entered_the_new_one() -> None:
    machine = training()
    machine.tell(RankGone(1, "died", 5.0), *meshed(2, 0), *ready(2))

    machine.tell(*meshed(3, 2), *meshed(2, 0), *meshed(1, 0))
    assert machine.state.joining is not None

    machine.tell(*meshed(3, 0))
    assert machine.state.joining is None


def test_a_newcomer_that_dies_while_it_joins_makes_the_others_form_anew_without_it() -> None:
    machine = training()
    machine.tell(RankGone(1, "died", 5.0), *meshed(2, 0), StepDone(2), *ready(2))

    said = machine.tell(RankGone(2, "died too", 6.0))

    assert announced(said) == (4, [0], "now")
    assert machine.state.joining is None


def test_a_member_that_dies_while_a_newcomer_joins_is_left_out_and_the_newcomer_asked_again() -> None:
    machine = training(workers=3)
    machine.tell(RankGone(2, "died", 5.0), *meshed(2, 0, 1), *ready(3))

    assert announced(machine.tell(RankGone(0, "died too", 6.0))) == (4, [1], "now")
    assert announced(machine.tell(*meshed(4, 1))) == (5, [1, 3], "boundary")


def test_a_second_death_during_the_forming_is_answered_at_once() -> None:
    machine = training(workers=3)
    machine.tell(RankGone(0, "died", 5.0), *meshed(2, 1))

    said = machine.tell(RankGone(1, "died too", 5.1))

    assert announced(said) == (3, [2], "now")
    assert machine.active.open_runs == ((0, 8),)


def test_open_shards_are_handed_over_along_the_whole_chain_of_deaths() -> None:
    """What a survivor has computed of the open step stays its own through two deaths in one step."""
    machine = training(workers=4)
    machine.tell(RankGone(1, "died", 5.0))
    first = machine.active.open_runs

    machine.tell(RankGone(0, "died too", 5.1))

    assert first == ((0, 3), (3, 6), (6, 8))
    assert machine.active.open_runs == ((0, 6), (6, 8))


def test_after_a_step_the_open_shards_are_those_of_the_even_map() -> None:
    machine = training(workers=4)
    machine.tell(RankGone(1, "died", 5.0), *meshed(2, 0, 2, 3))
    assert machine.active.runs == ((0, 2), (2, 5), (5, 8)) != machine.active.open_runs

    machine.tell(StepDone(2), RankGone(0, "died too", 6.0))

    assert machine.active.open_runs == ((0, 5), (5, 8))


def test_a_lost_agent_is_the_death_of_its_rank() -> None:
    machine = training()

    said = machine.tell(AgentLost("agent-1", 5.0))

    assert announced(said) == (2, [0], "now")
    assert not any(isinstance(instruction, StartRank) for instruction in said), "there is no agent to start one on"
    assert machine.tell(AgentJoined("agent-9")) == [StartRank("agent-9", 2)]


def test_a_frozen_rank_is_killed_and_replaced() -> None:
    """meta-pytorch/torchft#164: a known failure is not waited out."""
    machine = training()

    said = machine.tell(RankHung(0, "frozen: its process is stopped", 5.0))

    assert said[0] == KillRank(0, "agent-0")
    assert announced(said) == (2, [1], "now")
    assert said[-1] == StartRank("agent-0", 2)


def test_news_of_the_dead_changes_nothing() -> None:
    machine = training()
    machine.tell(RankHung(0, "frozen", 5.0))
    before = machine.state

    late = [RankGone(0, "killed", 6.0), RankHung(0, "frozen", 6.0), RankLeft(0), Meshed(0, 2), LinkBroken(0, 2, 1, 6.0)]
    assert machine.tell(*late, *ready(0), AgentLost("gone long ago", 6.0)) == []
    assert machine.state == before


# Broken links between the living


def broken(machine: Machine, reporter: int, blamed: int, at: float) -> list[Instruction]:
    """A report, and the time after which the machine has stopped waiting for news of a death."""
    said = machine.tell(LinkBroken(reporter, machine.state.generation, blamed, at))
    assert said == []
    return machine.tell(Tick(at + POLICY.blame_seconds))


def test_a_broken_link_waits_for_news_of_a_death() -> None:
    machine = training()

    assert machine.tell(LinkBroken(0, 1, 1, 5.0), Tick(5.1)) == []
    assert announced(machine.tell(RankGone(1, "died", 5.12))) == (2, [0], "now")
    assert machine.tell(Tick(9.0)) == [], "the report is answered"


def test_living_members_with_a_broken_link_mesh_again_twice_then_the_most_blamed_leaves() -> None:
    machine = training(workers=3)
    for again in range(MAX_REMESHES):
        said = broken(machine, 0, 2, 5.0 + again)
        assert announced(said) == (2 + again, [0, 1, 2], "now")
        machine.tell(*meshed(2 + again, 0, 1, 2))

    machine.tell(LinkBroken(0, 3, 2, 9.0), LinkBroken(2, 3, 1, 9.0))
    said = broken(machine, 1, 2, 9.0)

    assert said[0] == KillRank(2, "agent-2")
    assert announced(said) == (4, [0, 1], "now")
    assert said[-1] == StartRank("agent-2", 3)


def test_a_rank_that_is_cut_off_and_blames_all_others_leaves_itself() -> None:
    machine = training(workers=3)
    for again in range(MAX_REMESHES):
        broken(machine, 2, 0, 5.0 + again)
        machine.tell(*meshed(2 + again, 0, 1, 2))

    machine.tell(LinkBroken(2, 3, 0, 9.0))
    said = broken(machine, 2, 1, 9.0)

    assert said[0] == KillRank(2, "agent-2")


def test_the_same_report_twice_does_not_count_twice() -> None:
    machine = training(workers=3)
    for again in range(MAX_REMESHES):
        broken(machine, 0, 2, 5.0 + again)
    machine.tell(*[LinkBroken(1, 3, 0, 9.0)] * 3, LinkBroken(0, 3, 2, 9.0), LinkBroken(1, 3, 2, 9.0))

    assert machine.tell(Tick(9.2))[0] == KillRank(2, "agent-2")


def test_a_step_in_between_forgets_the_earlier_trouble() -> None:
    machine = training()
    for again in range(3 * MAX_REMESHES):
        said = broken(machine, 0, 1, 5.0 + again)
        assert announced(said) == (2 + again, [0, 1], "now")
        machine.tell(*meshed(2 + again, 0, 1), StepDone(2 + again))


def test_a_broken_link_is_answered_before_a_newcomer_is_asked_in() -> None:
    """Members that wait for a new formation cannot reach the boundary at which the newcomer would join."""
    machine = training(workers=3)
    machine.tell(RankGone(2, "died", 5.0), *meshed(2, 0, 1), LinkBroken(0, 2, 1, 6.0))

    assert machine.tell(*ready(3)) == []
    assert announced(machine.tell(Tick(6.2))) == (3, [0, 1], "now")
    assert announced(machine.tell(*meshed(3, 0, 1))) == (4, [0, 1, 3], "boundary")


def test_news_of_an_older_formations_links_changes_nothing() -> None:
    machine = training()
    broken(machine, 0, 1, 5.0)

    assert machine.tell(LinkBroken(1, 1, 0, 5.2), Tick(9.0)) == []


def test_a_newcomer_that_cannot_be_reached_is_given_up_and_so_is_its_agent() -> None:
    """Each try costs the others a stop, and they train in between: their count of trouble never adds up."""
    machine = training()
    machine.tell(AgentLost("agent-1", 5.0), *meshed(2, 0), AgentJoined("elsewhere"))
    now, newcomer, tries = 10.0, 2, 0
    machine.tell(*ready(newcomer))
    while machine.state.joining is not None:
        tries += 1
        now += 60.0
        said = machine.tell(LinkBroken(0, machine.state.generation, newcomer, now), Tick(now + 0.2))
        started = [instruction for instruction in said if isinstance(instruction, StartRank)]
        machine.tell(*meshed(machine.state.generation, 0), StepDone(machine.state.generation))
        if started:
            newcomer = started[0].member
            machine.tell(*ready(newcomer))

    assert tries == MAX_FAILED_STARTS * (MAX_REMESHES + 1)
    assert [member.number for member in machine.state.members] == [0]
    assert machine.active.runs == ((0, 8),)


# The end


def test_a_stop_is_told_to_every_rank_and_no_rank_is_started_or_taken_in_any_more() -> None:
    machine = training()
    machine.tell(RankGone(1, "died", 5.0), *meshed(2, 0))

    assert machine.tell(StopRequested()) == [TellStop(machine.state.members)]
    assert machine.tell(*ready(2), AgentJoined("late")) == []
    said = machine.tell(RankLeft(0))
    assert said == [KillRank(2, "agent-1"), ReportEnded()]


def test_a_stop_before_the_first_formation_ends_the_gang() -> None:
    machine = Machine()
    machine.tell(AgentJoined("a"), AgentJoined("b"), *ready(0))

    assert machine.tell(StopRequested()) == [KillRank(0, "a"), KillRank(1, "b"), ReportEnded()]
    assert machine.tell(*ready(1), Tick(1000.0)) == []


def test_ranks_that_leave_in_order_end_the_gang() -> None:
    machine = training()

    assert machine.tell(RankLeft(0), RankLeft(0)) == []
    assert machine.tell(RankLeft(1)) == [ReportEnded()]
    assert machine.state.phase is Phase.ENDED
    assert machine.tell(RankLeft(1), AgentLost("agent-0", 9.0), AgentJoined("late"), Tick(900.0)) == []


def test_reports_of_broken_links_end_with_the_gang() -> None:
    machine = training()
    machine.tell(LinkBroken(1, 1, 0, 5.0), RankLeft(0), RankLeft(1))

    assert machine.state.phase is Phase.ENDED
    assert machine.tell(Tick(9.0)) == []

    machine = training()
    machine.tell(LinkBroken(1, 1, 0, 5.0), GaveUp("nobody holds them"))
    assert machine.tell(Tick(9.0)) == []


def test_a_rank_that_dies_while_others_leave_is_left_behind() -> None:
    machine = training(workers=3)

    assert machine.tell(RankLeft(0)) == []
    assert announced(machine.tell(RankGone(1, "died", 5.0))) == (2, [2], "now")
    assert machine.tell(RankLeft(2))[-1] == ReportEnded()


def test_the_last_rank_may_die_after_another_has_left_in_order() -> None:
    """Who left has passed the last barrier, so its records are all there are."""
    machine = training()

    assert machine.tell(RankLeft(0), RankGone(1, "died", 5.0)) == [ReportEnded()]


def test_a_formation_with_a_member_that_had_left_already_is_made_anew() -> None:
    """Its news was on its way when another died: nobody will come to the mesh in its place."""
    machine = training(workers=3)
    machine.tell(RankHung(0, "frozen", 5.0))
    assert [member.number for member in machine.active.members] == [1, 2]

    assert announced(machine.tell(RankLeft(1))) == (3, [2], "now")
    assert machine.tell(*meshed(3, 2), RankLeft(2))[-1] == ReportEnded()


def test_nobody_is_taken_in_once_somebody_has_left() -> None:
    machine = training(workers=3)
    machine.tell(RankGone(2, "died", 5.0), *meshed(2, 0), RankLeft(0))

    assert machine.tell(*meshed(2, 1), *ready(3)) == []
    assert machine.tell(RankLeft(1)) == [KillRank(3, "agent-2"), ReportEnded()]


# Lost


def test_the_gang_is_lost_when_nobody_with_a_state_lives() -> None:
    machine = training()
    machine.tell(RankGone(0, "died", 5.0))

    said = machine.tell(RankGone(1, "died too", 5.1))

    assert said == [KillRank(2, "agent-0"), ReportLost("died too")]
    assert machine.state.phase is Phase.LOST
    assert machine.tell(RankGone(2, "killed", 5.2), *ready(2), Tick(900.0), AgentJoined("late")) == []


def test_a_lost_gang_begins_again_on_the_agents_that_live() -> None:
    machine = training()
    machine.tell(AgentLost("agent-0", 5.0), RankGone(1, "died", 5.1))

    assert machine.tell(Restarted(6.0)) == [StartRank("agent-1", 2)]
    assert machine.tell(*ready(2), Tick(100.0)) == []
    assert announced(machine.tell(Tick(126.0))) == (3, [2], "now")
    assert machine.active.cause == "start"


def test_a_gang_that_trains_is_not_restarted() -> None:
    machine = training()

    assert machine.tell(Restarted(6.0)) == []
    assert machine.state.phase is Phase.RUNNING


def test_a_newcomer_that_is_known_to_hold_the_state_goes_on_when_all_others_die() -> None:
    machine = training()
    machine.tell(RankGone(1, "died", 5.0), *meshed(2, 0), *ready(2), *meshed(3, 2))

    said = machine.tell(RankGone(0, "died too", 6.0))

    assert announced(said) == (4, [2], "now")


def test_a_newcomer_may_still_tell_that_it_holds_the_state_after_all_others_have_died() -> None:
    """The news of the death may come first, since the two travel by different agents."""
    machine = training()
    machine.tell(RankGone(1, "died", 5.0), *meshed(2, 0), *ready(2))

    assert machine.tell(RankGone(0, "died too", 6.0)) == [StartRank("agent-0", 3)]
    assert machine.tell(Tick(6.1)) == []
    assert announced(machine.tell(*meshed(3, 2))) == (4, [2], "now")


def test_a_newcomer_that_does_not_tell_so_in_time_is_lost_with_the_others() -> None:
    machine = training()
    machine.tell(RankGone(1, "died", 5.0), *meshed(2, 0), *ready(2), RankGone(0, "died too", 6.0))

    said = machine.tell(Tick(6.2))

    assert said == [KillRank(2, "agent-1"), KillRank(3, "agent-0"), ReportLost("died too")]


def test_a_newcomer_that_dies_after_all_others_is_not_waited_for() -> None:
    machine = training()
    machine.tell(RankGone(1, "died", 5.0), *meshed(2, 0), *ready(2), RankGone(0, "died too", 6.0))

    said = machine.tell(RankGone(2, "the last one", 6.05))

    assert said[-1] == ReportLost("died too")


def test_a_newcomer_left_out_after_a_death_still_counts_as_an_heir() -> None:
    machine = training(workers=3)
    machine.tell(RankGone(2, "died", 5.0), *meshed(2, 0, 1), *ready(3), *meshed(3, 3))
    machine.tell(RankGone(0, "died too", 6.0))
    assert [member.number for member in machine.active.members] == [1]

    assert announced(machine.tell(RankGone(1, "and the last", 6.1))) == (5, [3], "now")


def test_generations_only_ever_grow() -> None:
    machine = training()
    machine.tell(RankGone(0, "died", 5.0), RankGone(1, "died", 5.1), Restarted(6.0), *ready(2, 3), *ready(4))

    assert machine.active.generation == 3


def test_a_gang_whose_records_can_never_be_stored_is_lost_and_begins_again() -> None:
    machine = training()

    assert machine.tell(GaveUp("nobody holds them")) == [
        KillRank(0, "agent-0"),
        KillRank(1, "agent-1"),
        ReportLost("nobody holds them"),
    ]
    assert machine.tell(Restarted(9.0)) == [StartRank("agent-0", 2), StartRank("agent-1", 3)]


def test_a_gang_that_has_ended_begins_again_if_its_last_records_are_lost() -> None:
    machine = training()
    machine.tell(RankLeft(0), RankLeft(1))

    assert machine.tell(GaveUp("nobody holds them")) == [ReportLost("nobody holds them")]
    assert machine.tell(Restarted(9.0)) == [StartRank("agent-0", 2), StartRank("agent-1", 3)]


def test_a_gang_that_was_asked_to_stop_does_not_begin_again() -> None:
    machine = training()
    machine.tell(StopRequested(), RankLeft(0), RankLeft(1))

    assert machine.tell(GaveUp("nobody holds them")) == []
