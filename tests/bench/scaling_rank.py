"""One rank of `scaling`: the product's `StepRunner` over a real mesh, each part of a step timed by itself.

Its records are given free as soon as they are in the ring; sealing and storing them is an agent's work.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bench.overhead_process import Answer, AskedProcess, answer_all
from openclaw_tasks.config.job import TrainJob

if TYPE_CHECKING:
    from bench.scaling_step import Stepper

DEADLINE_SECONDS: Final = 120.0
TOKEN: Final = b"scaling"
_MODULE: Final = "bench.scaling_rank"


class Step(NamedTuple):
    """Of one rank: seconds by part, bytes sent, and those of them that are no gradient."""

    seconds: dict[str, float]
    sent_bytes: int
    other_bytes: int


@contextlib.contextmanager
def gang_of(ranks: int) -> Iterator[Sequence[AskedProcess]]:
    """So many rank processes, which take the steps of one job after the other."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(AskedProcess(_MODULE)) for _ in range(ranks)]


def take_steps(gang: Sequence[AskedProcess], job: TrainJob, warm: int, count: int) -> list[list[Step]]:
    """The steps of each rank, after `warm` ones that are not told. All must end in the same state."""
    ports = [answer["port"] for answer in _ask_all(gang, [{"what": "build", "job": job.document()}] * len(gang))]
    addresses = [("127.0.0.1", port) for port in ports]
    _ask_all(gang, [{"what": "connect", "rank": rank, "addresses": addresses} for rank in range(len(gang))])
    answers = _ask_all(gang, [{"what": "steps", "count": warm + count}] * len(gang))
    assert len({answer["digest"] for answer in answers}) == 1, "the ranks' states differ"
    return [[Step(*step) for step in answer["steps"][warm:]] for answer in answers]


def _ask_all(gang: Sequence[AskedProcess], questions: Sequence[dict[str, Any]]) -> list[Answer]:
    for process, question in zip(gang, questions, strict=True):
        process.tell(**question)
    return [process.answer() for process in gang]


class Clock:
    """Seconds by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begun


class Worker:
    """The answering end."""

    def __init__(self) -> None:
        self._stepper: Stepper | None = None

    def answer(self, what: str, **how: Any) -> Answer:
        if what == "build":
            return self._build(TrainJob.parse(how["job"]))
        assert self._stepper is not None, "build comes first"
        if what == "connect":
            self._stepper.connect(how["rank"], [(host, port) for host, port in how["addresses"]])
            return {}
        assert what == "steps", what
        return {"steps": [self._stepper.step() for _ in range(how["count"])], "digest": self._stepper.digest()}

    def _build(self, job: TrainJob) -> Answer:
        from bench.scaling_step import Stepper  # torch

        if self._stepper is not None:
            self._stepper.close()
        self._stepper = None  # first: two large states need not stand side by side
        self._stepper = Stepper(job)
        return {"port": self._stepper.port}


if __name__ == "__main__":
    answer_all(Worker().answer)
