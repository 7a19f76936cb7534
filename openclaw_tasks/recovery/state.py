"""What the recovery machine knows, and the policy it follows."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from openclaw_tasks.recovery.events import LinkBroken
from openclaw_tasks.recovery.formation import Formation, Member


class Phase(enum.Enum):
    ASSEMBLING = "assembling"  # waits for the first ranks
    RUNNING = "running"
    ENDED = "ended"  # every rank left after the last step
    LOST = "lost"  # nobody is left who holds a state


@dataclass(frozen=True, slots=True)
class Policy:
    workers: int
    shards: int
    assemble_seconds: float = 120.0  # then go on with the ranks that are ready
    blame_seconds: float = 0.15  # a broken link waits so long for news of a death before its ends mesh again


@dataclass(frozen=True, slots=True)
class Bereaved:
    """Nobody of the active formation lives, but a newcomer may have taken its state already."""

    cause: str
    since: float


@dataclass(frozen=True, slots=True)
class State:
    policy: Policy
    phase: Phase = Phase.ASSEMBLING
    assembling_since: float = 0.0
    agents: tuple[str, ...] = ()
    members: tuple[Member, ...] = ()  # every living rank process, in order of number
    next_member: int = 0
    generation: int = 0
    active: Formation | None = None  # the one that trains, or forms after a loss
    joining: Formation | None = None  # a boundary formation on its way
    meshed: frozenset[int] = frozenset()  # members seen in the newest formation
    holders: frozenset[int] = frozenset()  # members known to hold the group's state
    invited: frozenset[int] = frozenset()  # members that were ever asked in at a boundary: they may hold it
    bereaved: Bereaved | None = None
    stepped: bool = False  # the active formation has finished a step
    blames: tuple[LinkBroken, ...] = ()
    remeshes: int = 0
    refusals: tuple[int, ...] = ()  # one entry of a newcomer's number for each joining of it that broke
    stopping: bool = False
    left: frozenset[int] = frozenset()
    failed_starts: tuple[str, ...] = ()  # one entry of the agent's name each

    def member(self, number: int) -> Member | None:
        """The living member of that number."""
        return next((member for member in self.members if member.number == number), None)
