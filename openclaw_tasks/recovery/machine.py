"""The recovery machine: what happened in, what to do out. No I/O, no clock of its own.

Only this machine makes generations. A *formation* is a generation number with its members in rank order and its
owner maps. `when="now"` replaces a formation in which somebody died: the members drop what they exchange and mesh
again. `when="boundary"` adds members: everybody goes on in the old formation until all have heard of the new one,
and they change together after the same step.

Policy: go on at once with who lives, take in the replacement when it is ready.

News may come late, twice, or in another order than it happened on different agents: members that are gone are not
known any more, and what is said of them, or of an older generation, changes nothing. A newcomer may therefore hold
the group's state before the machine has heard so: when nobody else is left, it waits a moment for that news.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from openclaw_tasks.recovery.blame import most_broken
from openclaw_tasks.recovery.events import (
    AgentJoined,
    AgentLost,
    Event,
    GaveUp,
    LinkBroken,
    Meshed,
    RankGone,
    RankHung,
    RankLeft,
    RankReady,
    Restarted,
    StepDone,
    StopRequested,
    Tick,
)
from openclaw_tasks.recovery.formation import Address, Formation, Member
from openclaw_tasks.recovery.instructions import (
    Announce,
    Instruction,
    KillRank,
    ReportEnded,
    ReportLost,
    StartRank,
    TellStop,
)
from openclaw_tasks.recovery.owners import Runs, equal_split, hand_over
from openclaw_tasks.recovery.state import Bereaved, Phase, Policy, State

__all__ = [
    "MAX_FAILED_STARTS",
    "MAX_REMESHES",
    "Address",
    "AgentJoined",
    "AgentLost",
    "Announce",
    "Event",
    "Formation",
    "GaveUp",
    "Instruction",
    "KillRank",
    "LinkBroken",
    "Member",
    "Meshed",
    "Phase",
    "Policy",
    "RankGone",
    "RankHung",
    "RankLeft",
    "RankReady",
    "ReportEnded",
    "ReportLost",
    "Restarted",
    "StartRank",
    "State",
    "StepDone",
    "StopRequested",
    "TellStop",
    "Tick",
    "advance",
]

MAX_REMESHES = 2  # the same living members mesh again this often; then the most blamed one leaves
MAX_FAILED_STARTS = 3  # an agent whose ranks go this often before they have meshed gets no more


def advance(state: State, event: Event) -> tuple[State, tuple[Instruction, ...]]:
    """The state after `event`, and what to do because of it, in that order."""
    out: list[Instruction] = []
    match event:
        case AgentJoined(agent):
            state = _welcome(state, agent, out)
        case AgentLost(agent, at):
            state = replace(state, agents=tuple(name for name in state.agents if name != agent))
            for member in [member for member in state.members if member.agent == agent]:
                state = _without(state, member.number, "agent lost", at, out)
        case RankReady(number, address):
            state = _ready(state, number, address, out)
        case RankGone(number, cause, at):
            state = _without(state, number, cause, at, out)
        case RankHung(number, cause, at):
            state = _expel(state, number, cause, at, out)
        case LinkBroken():
            state = _blame(state, event)
        case Meshed(number, generation):
            state = _meshed(state, number, generation, out)
        case StepDone(generation):
            if state.active is not None and state.active.generation == generation:
                state = replace(state, stepped=True, remeshes=0)
        case RankLeft(number):
            state = _leave(state, number, out)
        case StopRequested():
            state = _stop(state, out)
        case GaveUp(cause):
            has_ended = state.phase is Phase.ENDED and not state.stopping
            if state.phase is Phase.RUNNING or has_ended:
                state = _lose(state, cause, out)
        case Restarted(at):
            state = _restart(state, at, out)
        case Tick(at):
            state = _tick(state, at, out)
    return state, tuple(out)


# Starting ranks


def _welcome(state: State, agent: str, out: list[Instruction]) -> State:
    if agent in state.agents:
        return state
    return _start_missing_ranks(replace(state, agents=(*state.agents, agent)), out)


def _start_missing_ranks(state: State, out: list[Instruction]) -> State:
    """One rank on each agent that has none, up to the wanted number."""
    if state.stopping or state.phase in (Phase.ENDED, Phase.LOST):
        return state
    busy = {member.agent for member in state.members}
    for agent in state.agents:
        if len(state.members) >= state.policy.workers:
            break
        if agent in busy or state.failed_starts.count(agent) >= MAX_FAILED_STARTS:
            continue
        member = Member(state.next_member, agent)
        out.append(StartRank(agent, member.number))
        state = replace(state, members=(*state.members, member), next_member=state.next_member + 1)
    return state


def _ready(state: State, number: int, address: Address, out: list[Instruction]) -> State:
    members = tuple(replace(member, address=address) if member.number == number else member for member in state.members)
    state = replace(state, members=members)
    if state.phase is Phase.ASSEMBLING:
        ready = _ready_members(state)
        return _form_first(state, ready, out) if len(ready) >= state.policy.workers else state
    return _form_with_newcomers(state, out)


def _ready_members(state: State) -> tuple[Member, ...]:
    return tuple(member for member in state.members if member.address is not None)


def _restart(state: State, at: float, out: list[Instruction]) -> State:
    if state.phase is not Phase.LOST:
        return state
    fresh = State(
        state.policy,
        assembling_since=at,
        agents=state.agents,
        next_member=state.next_member,
        generation=state.generation,
    )
    return _start_missing_ranks(fresh, out)


# Making formations


def _form_first(state: State, ready: tuple[Member, ...], out: list[Instruction]) -> State:
    return _announce(replace(state, phase=Phase.RUNNING), ready, None, "now", "start", out)


def _form_with_newcomers(state: State, out: list[Instruction]) -> State:
    """Announce the ranks that are ready and not in, unless another formation is on its way or due."""
    active = state.active
    if state.phase is not Phase.RUNNING or active is None or state.joining is not None:
        return state
    if state.stopping or state.left or state.blames or state.bereaved is not None:
        return state
    inside = {member.number for member in active.members}
    newcomers = tuple(member for member in _ready_members(state) if member.number not in inside)
    if not newcomers or not inside <= state.meshed:
        return state
    state = replace(state, invited=state.invited | {member.number for member in newcomers})
    return _announce(state, (*active.members, *newcomers), None, "boundary", "join", out)


def _announce(
    state: State,
    members: tuple[Member, ...],
    open_runs: Runs | None,
    when: Literal["now", "boundary"],
    cause: str,
    out: list[Instruction],
) -> State:
    runs = equal_split(state.policy.shards, len(members))
    formation = Formation(state.generation + 1, members, runs, open_runs or runs, when, cause)
    out.append(Announce(formation))
    state = replace(state, generation=formation.generation, meshed=frozenset(), blames=(), bereaved=None)
    if when == "boundary":
        return replace(state, joining=formation)
    return replace(state, active=formation, joining=None, stepped=False)


def _form_anew(state: State, cause: str, out: list[Instruction]) -> State:
    """The members that are present mesh again at once; what they computed of the open step stays of use."""
    assert state.active is not None
    present = _present(state)
    lost = {rank for rank, member in enumerate(state.active.members) if member not in present}
    open_map = state.active.runs if state.stepped else state.active.open_runs
    return _announce(state, present, hand_over(open_map, lost), "now", cause, out)


def _present(state: State) -> tuple[Member, ...]:
    """Members of the active formation that live and have not left."""
    assert state.active is not None
    alive = {member.number for member in state.members}
    return tuple(member for member in state.active.members if member.number in alive)


def _meshed(state: State, number: int, generation: int, out: list[Instruction]) -> State:
    member = state.member(number)
    if member is None:
        return state
    state = replace(
        state,
        holders=state.holders | {number},
        failed_starts=tuple(agent for agent in state.failed_starts if agent != member.agent),
    )
    if state.bereaved is not None:
        return _inherit(state, state.bereaved, out)
    newest = state.joining or state.active
    if newest is None or newest.generation != generation:
        return state
    state = replace(state, meshed=state.meshed | {number})
    if not {member.number for member in newest.members} <= state.meshed:
        return state
    if state.joining is not None:
        state = replace(state, active=state.joining, joining=None, stepped=False)
    return _form_with_newcomers(state, out)


# Losses


def _expel(state: State, number: int, cause: str, at: float, out: list[Instruction]) -> State:
    member = state.member(number)
    if member is None:
        return state
    out.append(KillRank(number, member.agent))
    return _without(state, number, cause, at, out)


def _without(state: State, number: int, cause: str, at: float, out: list[Instruction]) -> State:
    """`number` is dead: go on without it, and start another where there is a place for it."""
    member = state.member(number)
    if member is None:
        return state
    state = replace(state, members=tuple(other for other in state.members if other.number != number))
    if number not in state.holders:
        state = replace(state, failed_starts=(*state.failed_starts, member.agent))
    state = _start_missing_ranks(_reform(state, number, cause, at, out), out)
    if state.phase is Phase.ASSEMBLING and state.agents and not state.members:
        return _lose(state, f"no rank could be started: {cause}", out)
    return state


def _reform(state: State, number: int, cause: str, at: float, out: list[Instruction]) -> State:
    """Answer a death, if it was one of those who train or of those who are about to join."""
    if state.active is None or state.phase is not Phase.RUNNING:
        return state
    if state.bereaved is not None:
        return _inherit(state, state.bereaved, out)
    # A newcomer's death too: members may already wait for it in the mesh, so they all form anew without it.
    formations = [formation for formation in (state.active, state.joining) if formation is not None]
    if all(formation.rank_of(number) is None for formation in formations):
        return state
    return _form_anew(state, cause, out) if _present(state) else _inherit(state, Bereaved(cause, at), out)


def _inherit(state: State, bereaved: Bereaved, out: list[Instruction]) -> State:
    """Nobody of the active formation is left: who else holds its state goes on; it is lost if nobody does."""
    if state.left:
        return _end(state, out)
    heirs = tuple(member for member in state.members if member.number in state.holders)
    if heirs:
        return _announce(state, heirs, None, "now", bereaved.cause, out)
    if any(member.number in state.invited for member in state.members):
        return replace(state, bereaved=bereaved, joining=None, blames=())
    return _lose(state, bereaved.cause, out)


def _lose(state: State, cause: str, out: list[Instruction]) -> State:
    out.extend(KillRank(member.number, member.agent) for member in state.members)
    out.append(ReportLost(cause))
    return replace(state, phase=Phase.LOST, active=None, joining=None, bereaved=None, blames=(), members=())


# Broken links between the living


def _blame(state: State, event: LinkBroken) -> State:
    """Note it, unless it is news of a formation that has been replaced already."""
    newest = state.joining or state.active
    known = {formation.generation for formation in (state.active, newest) if formation is not None}
    if event.generation not in known or state.member(event.reporter) is None or state.bereaved is not None:
        return state
    return replace(state, blames=(*state.blames, event))


def _mesh_again(state: State, at: float, out: list[Instruction]) -> State:
    """Living members with a broken link: the same ones mesh again, then the most blamed leaves.

    A formation with newcomers that breaks counts against the newcomers: training goes on without them in between,
    so the others' count begins again each time.
    """
    present = [member.number for member in _present(state)]
    joining = state.joining
    if joining is not None and any(blame.generation == joining.generation for blame in state.blames):
        newcomers = [member.number for member in joining.members if member.number not in present]
        state = replace(state, refusals=(*state.refusals, *newcomers))
        worst = most_broken(state.blames, newcomers, [*present, *newcomers])
        if worst is not None and state.refusals.count(worst) > MAX_REMESHES:
            return _expel(state, worst, "its links kept breaking", at, out)
        return _form_anew(state, "link broken", out)
    worst = most_broken(state.blames, present, present)
    if worst is not None and state.remeshes >= MAX_REMESHES:
        return _expel(replace(state, remeshes=0), worst, "its links kept breaking", at, out)
    return _form_anew(replace(state, remeshes=state.remeshes + 1), "link broken", out)


# The end


def _stop(state: State, out: list[Instruction]) -> State:
    state = replace(state, stopping=True)
    if state.phase is Phase.ASSEMBLING:
        return _end(state, out)
    if state.phase is Phase.RUNNING:
        out.append(TellStop(state.members))
    return state


def _leave(state: State, number: int, out: list[Instruction]) -> State:
    active = state.active
    if state.member(number) is None or active is None:
        return state
    state = replace(
        state,
        members=tuple(member for member in state.members if member.number != number),
        left=state.left | {number},
    )
    if not _present(state):
        return _end(state, out)
    if state.joining is None and active.rank_of(number) is not None and number not in state.meshed:
        # It had left before it could hear of this formation: the others would wait for it in the mesh.
        return _form_anew(state, "another had left", out)
    return state


def _end(state: State, out: list[Instruction]) -> State:
    out.extend(KillRank(member.number, member.agent) for member in state.members)
    out.append(ReportEnded())
    return replace(state, phase=Phase.ENDED, active=None, joining=None, bereaved=None, blames=(), members=())


def _tick(state: State, at: float, out: list[Instruction]) -> State:
    policy = state.policy
    if state.phase is Phase.ASSEMBLING:
        if at - state.assembling_since < policy.assemble_seconds:
            return state
        ready = _ready_members(state)
        if ready:
            return _form_first(state, ready, out)
        # Ranks that are starting are watched by their agents; without any nothing would ever happen.
        return state if state.members else _lose(state, "no agent came to start a rank on", out)
    if state.phase is not Phase.RUNNING:
        return state
    if state.bereaved is not None and at - state.bereaved.since >= policy.blame_seconds:
        return _lose(state, state.bereaved.cause, out)
    if state.blames and at - state.blames[0].at >= policy.blame_seconds:
        return _mesh_again(state, at, out)
    return state
