"""The training process of `overhead`: on a core of its own, takes steps in the loops that it is asked for."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, NamedTuple

from bench.overhead_process import Answer, AskedProcess, answer_all
from openclaw_tasks.config.job import TrainJob

if TYPE_CHECKING:
    from bench.overhead_loops import Loop


class Cores(NamedTuple):
    """The core that training has to itself, and the one for all else."""

    training: int
    rest: int


class TrainingProcess(AskedProcess):
    """The asking end."""

    def __init__(self, job: TrainJob, cores: Cores, folder: str) -> None:
        super().__init__("bench.overhead_worker")
        self.ask("begin", job=job.document(), cores=cores, folder=folder)

    def steps(self, loop: str, count: int) -> Answer:
        """Take `count` steps in a loop: "seconds", "busy_seconds" of processor time, the last step's "parts"."""
        return self.ask("steps", loop=loop, count=count)

    def digest(self, loop: str) -> str:
        """The state's digest in a loop."""
        digest: str = self.ask("digest", loop=loop)["digest"]
        return digest


class Worker:
    """The answering end. Loops are made when they are first asked for."""

    def __init__(self) -> None:
        self._loops: dict[str, Loop] = {}

    def answer(self, what: str, loop: str = "", count: int = 0, **how: object) -> Answer:
        if what == "begin":
            return self._begin(**how)  # type: ignore[arg-type]
        asked = self._loop(loop)
        if what == "digest":
            return {"digest": asked.training.state.state_digest()}
        parts: Mapping[str, float] = {}
        begun, busy = perf_counter(), thread_time()
        for _ in range(count):
            parts = asked.step()
        asked.finish()
        return {"seconds": perf_counter() - begun, "busy_seconds": thread_time() - busy, "parts": parts}

    def _begin(self, job: dict[str, object], cores: tuple[int, int], folder: str) -> Answer:
        self._job, self._cores, self._folder = TrainJob.parse(job), Cores(*cores), Path(folder)
        os.sched_setaffinity(0, {self._cores.training})  # before torch, which is not loaded yet, makes threads
        # DCP says that it saves in one process, and over what it saved before: both are meant.
        warnings.filterwarnings("ignore", module=r"torch\.distributed\.checkpoint")
        return {}

    def _loop(self, name: str) -> Loop:
        from bench.overhead_loops import make_loop

        if name not in self._loops:
            self._loops[name] = make_loop(name, self._job, self._folder, set(self._cores))
        return self._loops[name]


if __name__ == "__main__":
    answer_all(Worker().answer)
