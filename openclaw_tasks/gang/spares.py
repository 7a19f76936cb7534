"""Jobs beside training (proving a base, evaluation): the supervisor's side. Which agent has which, and its answer."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.gang.board import Board
from openclaw_tasks.gang.keeping import Tell

Answer = dict[str, Any]


class SpareJobs:
    """Numbers may be taken from any thread; all else is the supervisor's thread's."""

    def __init__(self, job: TrainJob, board: Board, tell: Tell) -> None:
        self._job = job
        self._board = board
        self._tell = tell
        self._numbers = itertools.count(1)
        self._agents: dict[int, str] = {}

    def next_number(self) -> int:
        """The number of a job to come, under which its answer will be found."""
        return next(self._numbers)

    def start(self, number: int, spec: Mapping[str, Any], agents: Sequence[str]) -> Answer | None:
        """Give the job to one of `agents`. An answer is returned at once if there is none."""
        if not agents:
            return {"number": number, "ok": False, "error": "its agent is gone", "retry": True}
        name = agents[number % len(agents)]
        self._agents[number] = name
        spec = {**spec, "number": number, "job": self._job.document(), "path": sys.path}
        self._tell(name, {"type": "spare", "spec": spec})
        return None

    def lost(self, agent: str) -> list[Answer]:
        """The agent is gone: what its jobs answer now."""
        numbers = [number for number, on in self._agents.items() if on == agent]
        error = f"agent {agent} was lost"
        return [{"number": number, "ok": False, "error": error, "retry": True} for number in numbers]

    def answered(self, answer: Answer) -> None:
        """Put a job's answer on the board, for the stage that waits for it."""
        self._agents.pop(answer["number"], None)
        self._board.update(lambda facts: facts.spares.update({answer["number"]: answer}))
