"""What the supervisor has told this rank, read in the pauses of its work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from openclaw_tasks.training.control import ControlChannel, Message
from openclaw_tasks.training.progress import Phase, ProgressPage


@dataclass(frozen=True, slots=True)
class Formation:
    """A generation as one of its members sees it."""

    generation: int
    rank: int
    members: tuple[int, ...]
    addresses: tuple[tuple[str, int], ...]
    runs: tuple[tuple[int, int], ...]
    open_runs: tuple[tuple[int, int], ...]
    restore_step: int | None  # where a gang without a state finds one in storage; None: the recipe's own
    kill_at: float | None  # CLOCK_MONOTONIC of the loss that this formation answers

    @classmethod
    def of(cls, message: Message) -> Formation:
        return cls(
            message["generation"],
            message["rank"],
            tuple(message["members"]),
            tuple((host, port) for host, port in message["addresses"]),
            tuple((lo, hi) for lo, hi in message["runs"]),
            tuple((lo, hi) for lo, hi in message["open_runs"]),
            message["restore_step"],
            message["kill_at"],
        )


class Dismissed(Exception):
    """Nobody will make another formation: this rank's work is over."""


class FormationChanged(Exception):
    """A newer formation replaces the one this rank is in: leave what you do and join it."""


class Orders:
    """Reads the control line; `breathe` is what every wait and every pause calls."""

    def __init__(self, line: ControlChannel, progress: ProgressPage) -> None:
        self._line = line
        self._progress = progress
        self._current = 0  # the generation this rank serves
        self._next: Formation | None = None  # replaces the current one at once
        self._joins: dict[int, Formation] = {}  # to change to when all have heard of them
        self._strikes: dict[int, str] = {}
        self._holds: set[int] = set()
        self._released: set[int] = set()
        self._dismissed = False
        self.stop = False

    @property
    def heard(self) -> int:
        """The newest formation for a step boundary that this rank knows of."""
        return max(self._joins, default=0)

    def breathe(self) -> None:
        """I move; and if a formation has replaced mine, leave. Raises FormationChanged or ControlClosed."""
        self._progress.beat()
        self._read(0.0)
        self.leave_if_replaced()

    def leave_if_replaced(self) -> None:
        """Raises FormationChanged if a newer formation waits for this rank."""
        if self._next is not None:
            raise FormationChanged

    def next_formation(self) -> Formation:
        """Wait for the formation to serve next. Raises Dismissed or ControlClosed."""
        while self._next is None:
            if self._dismissed:
                raise Dismissed
            self._progress.beat()
            self._read(0.2)
        formation, self._next = self._next, None
        self._current = formation.generation
        self._joins = {number: join for number, join in self._joins.items() if number > self._current}
        return formation

    def change_to(self, generation: int) -> None:
        """All have heard of this formation: it is the next, unless a newer one has replaced it already."""
        self._replace_by(self._joins.pop(generation))

    def strike_at(self, step: int) -> str | None:
        """The fault this rank is to commit upon itself in this step, once."""
        return self._strikes.pop(step, None)

    def hold_at(self, step: int) -> None:
        """If a fault strikes elsewhere in this step, tell that this rank is there and wait until it has.

        Raises FormationChanged or ControlClosed.
        """
        if step not in self._holds or step in self._released:
            return
        self._progress.enter(Phase.HELD, step)
        self._line.send({"type": "held", "step": step})
        while step not in self._released and not self.stop:
            self._progress.beat()
            self._read(0.05)
            self.leave_if_replaced()
        self._progress.enter(Phase.EXCHANGING, step)

    def _read(self, timeout_seconds: float) -> None:
        received = self._line.receive(timeout_seconds)
        while received is not None:
            self._take(received[0])
            received = self._line.receive(0.0)

    def _take(self, message: Message) -> None:
        match message["type"]:
            case "formation":
                self._take_formation(message)
            case "stop":
                self.stop = True
            case "dismiss":
                # The supervisor is gone: end together after this step, or alone if the group is broken.
                self.stop = self._dismissed = True
            case "release":
                self._released.add(message["step"])
            case other:
                raise AssertionError(f"unknown order {other!r}")

    def _take_formation(self, message: dict[str, Any]) -> None:
        formation = Formation.of(message)
        self._strikes.update({int(step): kind for step, kind in message["strikes"].items()})
        self._holds.update(message["holds"])
        self.stop = self.stop or message["stop"]
        if message["when"] == "boundary" and not message["newcomer"]:
            self._joins[formation.generation] = formation
        else:
            self._replace_by(formation)

    def _replace_by(self, formation: Formation) -> None:
        newest = self._current if self._next is None else self._next.generation
        if formation.generation > newest:
            self._next = formation
