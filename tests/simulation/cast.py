"""A process of the simulation, and what all of a schedule share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from openclaw_tasks.checkpoint.documents import Process
from openclaw_tasks.checkpoint.operations import (
    Answer,
    Operation,
    Pause,
    Steps,
)
from simulation.promises import Oracle
from simulation.world import World

PROCESS = Process(host="h", boot="b", pid=1, started=1)


@dataclass(slots=True)
class Actor:
    """A process: a generator and its open batch. Operations on one target keep their order; targets do not."""

    steps: Steps[Any]
    batch: Sequence[Operation] = ()
    answers: list[Answer] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    is_started: bool = False
    on_death: Callable[[], None] | None = None

    @property
    def is_waiting(self) -> bool:
        return any(isinstance(operation, Pause) for operation in self.batch)

    def advance(self, world: World) -> bool:
        """Do one operation; False when the process has ended."""
        if not self.is_started:
            self.is_started = True
            return self._send(None)
        if self.left:
            target = getattr(self.batch[world.rng.choice(self.left)], "target", None)
            place = next(place for place in self.left if getattr(self.batch[place], "target", None) == target)
            self.left.remove(place)
            operation = self.batch[place]
            self.answers[place] = None if isinstance(operation, Pause) else world.perform(operation)
        return self._send(self.answers) if not self.left else True

    def _send(self, answers: list[Answer] | None) -> bool:
        try:
            self.batch = next(self.steps) if answers is None else self.steps.send(answers)
        except StopIteration:
            return False
        self.answers = [None] * len(self.batch)
        self.left = list(range(len(self.batch)))
        return True


@dataclass(slots=True)
class Cast:
    """What all actors of a schedule share."""

    world: World
    oracle: Oracle
    left_out: str | None
    new_actors: list[Actor] = field(default_factory=list)
    dead_pins: set[str] = field(default_factory=set)
    crashes: int = 0
    """Processes that died in the middle of what they did."""
