"""What the recovery machine is told. Times (`at`) are monotonic seconds of the supervisor."""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_tasks.recovery.formation import Address


@dataclass(frozen=True, slots=True)
class AgentJoined:
    agent: str


@dataclass(frozen=True, slots=True)
class AgentLost:
    """An agent is gone, and its rank with it."""

    agent: str
    at: float


@dataclass(frozen=True, slots=True)
class RankReady:
    """A rank has built its training and can mesh."""

    member: int
    address: Address


@dataclass(frozen=True, slots=True)
class RankGone:
    """A rank's process has ended without leaving in order."""

    member: int
    cause: str
    at: float


@dataclass(frozen=True, slots=True)
class RankHung:
    """A rank's process lives and does not move."""

    member: int
    cause: str
    at: float


@dataclass(frozen=True, slots=True)
class LinkBroken:
    reporter: int
    generation: int
    blamed: int | None
    at: float


@dataclass(frozen=True, slots=True)
class Meshed:
    """A member has entered a formation and holds the group's state."""

    member: int
    generation: int


@dataclass(frozen=True, slots=True)
class StepDone:
    generation: int


@dataclass(frozen=True, slots=True)
class RankLeft:
    """A rank ended in order, after the last step's barrier."""

    member: int


@dataclass(frozen=True, slots=True)
class StopRequested:
    pass


@dataclass(frozen=True, slots=True)
class GaveUp:
    """What the ranks know can never reach storage: the gang must begin again from what is there."""

    cause: str


@dataclass(frozen=True, slots=True)
class Restarted:
    """A lost gang begins again with the agents that live."""

    at: float


@dataclass(frozen=True, slots=True)
class Tick:
    at: float


Event = (
    AgentJoined
    | AgentLost
    | RankReady
    | RankGone
    | RankHung
    | LinkBroken
    | Meshed
    | StepDone
    | RankLeft
    | StopRequested
    | GaveUp
    | Restarted
    | Tick
)
