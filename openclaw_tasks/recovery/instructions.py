"""What the recovery machine wants done."""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_tasks.recovery.formation import Formation, Member


@dataclass(frozen=True, slots=True)
class StartRank:
    agent: str
    member: int


@dataclass(frozen=True, slots=True)
class KillRank:
    member: int
    agent: str


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell every member of the formation."""

    formation: Formation


@dataclass(frozen=True, slots=True)
class TellStop:
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class ReportLost:
    """Nobody is left who holds a state: the stage's retry starts again from storage."""

    cause: str


@dataclass(frozen=True, slots=True)
class ReportEnded:
    """Every rank has left in order."""


Instruction = StartRank | KillRank | Announce | TellStop | ReportLost | ReportEnded
