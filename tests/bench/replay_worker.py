"""The processes that `replay` measures with: ranks that train again from a full save, and one that restores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any

import torch

from bench.overhead_process import Answer, AskedProcess, answer_all
from openclaw_tasks.collectives.mesh import Listener, Mesh
from openclaw_tasks.collectives.topology import topology_named
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.recovery.owners import equal_split
from openclaw_tasks.training.build import build_training
from openclaw_tasks.training.clock import UsefulTime
from openclaw_tasks.training.progress import ProgressPage
from openclaw_tasks.training.restore import restore_state
from openclaw_tasks.training.ring import RecordRing
from openclaw_tasks.training.step import Asides, Seat, StepRunner

_DEADLINE_SECONDS = 60.0


@contextmanager
def gang(job: TrainJob) -> Iterator[list[AskedProcess]]:
    """As many ranks as the job has, meshed."""
    with ExitStack() as stack:
        ranks = [stack.enter_context(AskedProcess("bench.replay_worker")) for _ in range(job.cluster.workers)]
        addresses = [answer["address"] for answer in ask_all(ranks, "begin", job=job.document())]
        for number, rank in enumerate(ranks):
            rank.tell("join", rank=number, addresses=addresses)
        for rank in ranks:
            rank.answer()
        yield ranks


def ask_all(ranks: Sequence[AskedProcess], what: str, **how: Any) -> list[Answer]:
    """The same of each at the same time."""
    for rank in ranks:
        rank.tell(what, **how)
    return [rank.answer() for rank in ranks]


class Rank:
    """The answering end: trains with its peers as ranks of a gang do, but has no agent and stores nothing."""

    def answer(self, what: str, **how: Any) -> Answer:
        match what:
            case "begin":
                self._job = TrainJob.parse(how["job"])
                self._listener = Listener()
                self._begin_anew()
                return {"address": [self._listener.host, self._listener.port]}
            case "join":
                self._join(**how)
            case "train":
                return {"step_seconds": self._train(**how)}
            case "save":
                torch.save(self._full_state(), how["file"])
            case "again":
                return self._train_again(**how)
            case "restore":
                return self._restore(**how)
        return {}

    def _begin_anew(self) -> None:
        self._training = build_training(self._job)
        state = self._training.state
        asides = Asides(breathe=_nothing, at_half=_nothing, wait_for_slot=_no_slot)
        self._ring = RecordRing.create(2, state.max_record_bytes())
        self._runner = StepRunner(
            self._training, self._ring, ProgressPage.create(), UsefulTime(), asides, _DEADLINE_SECONDS
        )

    def _join(self, rank: int, addresses: list[tuple[str, int]]) -> None:
        places = [(host, port) for host, port in addresses]
        mesh = Mesh.connect(self._listener, rank, places, 1, b"the bench's own", _DEADLINE_SECONDS)
        runs = equal_split(self._job.logical_shards, len(places))
        self._seat = Seat(1, rank, runs, runs, mesh, topology_named("direct"))

    def _train(self, until: int) -> list[float]:
        """Seconds of each step up to step `until`."""
        seconds = []
        while self._training.state.step < until:
            result = self._runner.run(self._seat, first=False)
            self._ring.free_through(result.step)
            seconds.append(result.seconds)
        return seconds

    def _full_state(self) -> dict[str, Any]:
        state = self._training.state
        return {
            "model": state.model.state_dict(),
            "optimizer": state.optimizer.state_dict(),
            "counters": (state.step, state.applied),
        }

    def _train_again(self, file: str, until: int) -> Answer:
        """From a fresh state: load the full save, train to step `until`."""
        self._begin_anew()
        self._meet()
        begun = perf_counter()
        state, saved = self._training.state, torch.load(file)
        state.model.load_state_dict(saved["model"])
        state.optimizer.load_state_dict(saved["optimizer"])
        state.step, state.applied = saved["counters"]
        loaded = perf_counter()
        step_seconds = self._train(until)
        seconds = perf_counter() - begun
        return {
            "seconds": seconds,
            "load_seconds": loaded - begun,
            "step_seconds": step_seconds,
            "digest": state.state_digest(),
        }

    def _meet(self) -> None:
        mesh = self._seat.transport
        peers = [rank for rank in range(mesh.world_size) if rank != mesh.rank]
        mesh.exchange(
            {peer: [b"\0"] for peer in peers},
            {peer: [bytearray(1)] for peer in peers},
            deadline_seconds=_DEADLINE_SECONDS,
        )

    def _restore(self, step: int) -> Answer:
        """From storage, as rank 0 of a fresh gang does."""
        state = build_training(self._job).state
        records = 0

        def count() -> None:
            nonlocal records
            records += 1

        begun = perf_counter()
        restore_state(self._job, state, step, on_record=count)
        return {"seconds": perf_counter() - begun, "records": records, "digest": state.state_digest()}


def _nothing(*_: object) -> None:
    pass


def _no_slot() -> int:
    raise AssertionError("the ring is given back in each step")


if __name__ == "__main__":
    answer_all(Rank().answer)
