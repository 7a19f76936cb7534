"""How long each loss took to get over. Times are CLOCK_MONOTONIC of this host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Loss:
    """A rank or agent that is gone."""

    cause: str
    step: int  # the step that was open
    kill_at: float
    detected_at: float


@dataclass(frozen=True, slots=True)
class Regained:
    """What a survivor reports after its first step in the new formation."""

    meshed_at: float
    computing_at: float
    done_at: float
    useful_seconds: float


_UNKNOWN = dict.fromkeys(
    ("announced_seconds", "meshed_seconds", "recovered_seconds", "stepped_seconds", "overhead_seconds")
)


class LossWatch:
    """Open losses, until every member of a formation has reported a step done in it."""

    def __init__(self) -> None:
        self._open: list[Loss] = []
        self._answered = 0  # how many of them, the oldest, the newest formation answers
        self._placed = 0  # how many of these a formation has shown the step of
        self._reports: dict[int, Regained] = {}
        self._generation = 0
        self._members: frozenset[int] = frozenset()
        self._announced_at = 0.0
        self._applied_step = 0  # in formations before the newest
        self._applied_since = 0  # in the newest
        self._meshed_step: int | None = None  # where the newest began
        self._steps_lost = 0

    @property
    def kill_at(self) -> float | None:
        """The earliest open loss: what the next formation answers."""
        return min((loss.kill_at for loss in self._open), default=None)

    def lose(self, loss: Loss) -> None:
        self._open.append(loss)

    def applied(self, step: int, generation: int | None = None) -> None:
        """Some rank has applied this step's update, in that formation if it says so.

        News of several ranks come in no order: what was done in the newest formation says nothing of what was lost
        before it, and what was done in an older one may be heard of late.
        """
        if generation is not None and generation >= self._generation:
            self._applied_since = max(self._applied_since, step)
            return
        self._applied_step = max(self._applied_step, step)
        if generation is not None and self._open and self._meshed_step is not None:
            self._steps_lost = max(self._steps_lost, step - self._meshed_step)

    def formed(self, generation: int, members: frozenset[int], at: float) -> None:
        """A new formation, announced `at`: its members' reports count, those of older ones do not."""
        self._generation, self._members, self._answered = generation, members, len(self._open)
        self._announced_at = at
        self._reports = {}
        self._applied_step = max(self._applied_step, self._applied_since)
        self._applied_since, self._meshed_step = 0, None

    def meshed(self, generation: int, step: int) -> None:
        """A member of a formation stands at `step`: in the newest, what had been applied beyond is done again."""
        if self._open and generation != self._generation:
            return
        self._meshed_step = step
        # The last step that was heard of may be older than the one that was open: now it is known.
        for index in range(self._placed, self._answered):
            loss = self._open[index]
            self._open[index] = replace(loss, step=max(loss.step, step + 1))
        self._placed = self._answered
        if self._open and self._applied_step > step:
            self._steps_lost = max(self._steps_lost, self._applied_step - step)
        self._applied_step = step if self._open else max(self._applied_step, step)

    def regained(self, member: int, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        """A survivor's report; the recoveries (as their events tell them) that it completes."""
        if message["generation"] != self._generation or not self._answered:
            return []
        self._reports[member] = Regained(
            message["meshed_at"], message["computing_at"], message["done_at"], message["useful_seconds"]
        )
        if not self._members <= self._reports.keys():
            return []
        done = [self._recovery(loss) for loss in self._open[: self._answered]]
        del self._open[: self._answered]
        self._answered = self._placed = self._steps_lost = 0
        return done

    def end(self) -> list[dict[str, Any]]:
        """The gang has ended: losses after which no step was left to do. Nothing was computed again after them."""
        ended, self._open = self._open, []
        return [{**self._facts(loss), **_UNKNOWN} for loss in ended]

    def _recovery(self, loss: Loss) -> dict[str, Any]:
        """Of each moment that of the member which came to it last, so that no stretch between two is counted twice."""
        reports = self._reports.values()
        last = max(reports, key=lambda report: report.done_at)
        return {
            **self._facts(loss),
            "announced_seconds": _between(loss.kill_at, self._announced_at),
            "meshed_seconds": _between(loss.kill_at, max(report.meshed_at for report in reports)),
            "recovered_seconds": _between(loss.kill_at, max(report.computing_at for report in reports)),
            "stepped_seconds": _between(loss.kill_at, last.done_at),
            "overhead_seconds": max(0.0, _between(loss.kill_at, last.done_at - last.useful_seconds)),
        }

    def _facts(self, loss: Loss) -> dict[str, Any]:
        return {
            "step": loss.step,
            "cause": loss.cause,
            "detected_seconds": _between(loss.kill_at, loss.detected_at),
            "steps_lost": self._steps_lost,
        }


def _between(kill_at: float, moment: float) -> float:
    return round(moment - kill_at, 6)
