"""A generation: who trains together, in which order, and who computes which logical shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from openclaw_tasks.recovery.owners import Runs

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Member:
    """One rank process. A replacement is another member."""

    number: int
    agent: str
    address: Address | None = None  # None until it is ready to mesh


@dataclass(frozen=True, slots=True)
class Formation:
    """A generation number with its members in rank order and its owner maps."""

    generation: int
    members: tuple[Member, ...]
    runs: Runs
    open_runs: Runs  # for the step that was open when the formation began
    when: Literal["now", "boundary"]
    cause: str

    def rank_of(self, number: int) -> int | None:
        """The rank of a member, None if it is not in this formation."""
        return next((rank for rank, member in enumerate(self.members) if member.number == number), None)
