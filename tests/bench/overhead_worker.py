"""The training process of `overhead`: on a core of its own, takes steps in the loops that it is asked for.

One request and one answer a line, in JSON, on standard input and output. The first request says what to train.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from openclaw_tasks.config.job import TrainJob

if TYPE_CHECKING:
    from bench.overhead_loops import Loop


class Cores(NamedTuple):
    """The core that training has to itself, and the one for all else."""

    training: int
    rest: int


class TrainingProcess:
    """The other end: starts the process, asks it, ends it."""

    def __init__(self, job: TrainJob, cores: Cores, folder: str, environment: Mapping[str, str]) -> None:
        """`environment`: a rank's own, which decides how memory and threads are used."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.overhead_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            bufsize=1,
        )
        self._ask({"job": job.document(), "cores": cores, "folder": folder})

    def steps(self, loop: str, count: int) -> dict[str, Any]:
        """Take `count` steps in a loop: "seconds" in all, "parts" of the last step."""
        return self._ask({"loop": loop, "count": count})

    def digest(self, loop: str) -> str:
        """The state's digest in a loop."""
        digest: str = self._ask({"loop": loop, "count": 0, "digest": True})["digest"]
        return digest

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, "the training process has died; what it said is above"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def main() -> None:
    request = json.loads(sys.stdin.readline())
    cores = Cores(*request["cores"])
    os.sched_setaffinity(0, {cores.training})  # before torch makes threads
    from bench.overhead_loops import make_loop

    # DCP says that it saves in one process, and over what it saved before: both are meant.
    warnings.filterwarnings("ignore", module=r"torch\.distributed\.checkpoint")
    job, folder = TrainJob.parse(request["job"]), Path(request["folder"])
    loops: dict[str, Loop] = {}
    print("{}", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        name = request["loop"]
        if name not in loops:
            loops[name] = make_loop(name, job, folder, set(cores))
        print(json.dumps(_answer(loops[name], request)), flush=True)


def _answer(loop: Loop, request: dict[str, Any]) -> dict[str, Any]:
    if request.get("digest"):
        return {"digest": loop.training.state.state_digest()}
    parts: Mapping[str, float] = {}
    begun = perf_counter()
    for _ in range(request["count"]):
        parts = loop.step()
    loop.finish()
    return {"seconds": perf_counter() - begun, "parts": parts}


if __name__ == "__main__":
    main()
