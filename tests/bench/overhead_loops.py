"""One step in each of the ways that `overhead` compares: without a record, with one, with a full save.

All train the job's model in this process as a world of one, from the same first state and on the same batches.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.state_dict_saver import async_save

from openclaw_tasks.collectives.mesh import Listener, Mesh
from openclaw_tasks.collectives.topology import topology_named
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.exact.apply import scale_gradient
from openclaw_tasks.exact.buffers import check_changes
from openclaw_tasks.exact.codecs import Codec
from openclaw_tasks.exact.finite import all_finite
from openclaw_tasks.exact.layout import unique_parameters
from openclaw_tasks.exact.record import Buffer, Record, seal_record, union_presence, unpack_presence
from openclaw_tasks.exact.seeding import seed_update
from openclaw_tasks.gang.ledger import GROUP_BYTES
from openclaw_tasks.training.build import Training, build_training
from openclaw_tasks.training.clock import UsefulTime
from openclaw_tasks.training.open_step import OpenStep
from openclaw_tasks.training.progress import ProgressPage
from openclaw_tasks.training.ring import RecordRing
from openclaw_tasks.training.step import Asides, Seat, StepRunner

CODECS = ("bf16", "exact", "int8")


class Loop(Protocol):
    """A way to train."""

    training: Training

    def step(self) -> Mapping[str, float]:
        """Take one step; seconds of its parts, where they are known."""

    def finish(self) -> None:
        """Wait for what still goes on beside training."""


class PlainLoop:
    """The baseline: per-shard flat buffers, tree sum, clip, apply. No codec, no record, no storage."""

    def __init__(self, job: TrainJob) -> None:
        self.training = build_training(job)
        parameters = unique_parameters(self.training.state.model)
        self._trained = [parameters[entry.name] for entry in self.training.state.layout.entries]

    def step(self) -> Mapping[str, float]:
        state, source = self.training.state, self.training.source
        opened = OpenStep(state.step + 1)
        run = (0, source.logical_shards)
        summed = opened.nodes(run, lambda shard: self.training.computer.compute(opened.step, shard))[run]
        facts = list(opened.facts.values())
        items = sum(fact.items for fact in facts)
        assert items > 0
        assert all_finite(summed)
        present = unpack_presence(union_presence([fact.present for fact in facts]), len(state.layout.entries))
        buffers = check_changes(state.model, opened.buffers)
        with torch.no_grad():
            scale_gradient(summed, items, state.clip_norm)
            for parameter, view, has in zip(self._trained, state.layout.views(summed), present, strict=True):
                parameter.grad = view if has else None
            state.set_learning_rates()
            seed_update(opened.step)
            state.optimizer.step()
            state.drop_gradients()
            for live, value in buffers:
                live.copy_(value)
        state.applied += 1
        state.step = opened.step
        return {}

    def finish(self) -> None:
        pass

    def full_state(self) -> dict[str, object]:
        """What a full save holds."""
        state = self.training.state
        return {"model": state.model.state_dict(), "optimizer": state.optimizer.state_dict(), "step": state.step}


class RecordLoop:
    """The product's own step, with a ring. The digest, which is the agent's work, is made here as well."""

    def __init__(self, job: TrainJob) -> None:
        self.training = build_training(job)
        state = self.training.state
        self._timed = state.codec = _TimedCodec(state.codec)
        bounds = job.fault_tolerance
        record_bytes = state.max_record_bytes()
        slots = min(bounds.max_unprotected_steps, bounds.max_unprotected_bytes // record_bytes)
        self._ring = RecordRing.create(slots, record_bytes)
        # As many records as a group holds wait in the ring.
        self._group_steps = max(1, min(job.store.group_steps, GROUP_BYTES // record_bytes))
        asides = Asides(breathe=_nothing, at_half=_nothing, wait_for_slot=_no_slot)
        progress = ProgressPage.create()
        self._runner = _TimedRunner(self.training, self._ring, progress, UsefulTime(), asides, exchange_seconds=60.0)
        listener = Listener()
        address = (listener.host, listener.port)
        mesh = Mesh.connect(listener, 0, [address], generation=1, token=b"alone", deadline_seconds=10.0)
        run = ((0, job.logical_shards),)
        self._seat = Seat(1, 0, run, run, mesh, topology_named("direct"))

    def step(self) -> Mapping[str, float]:
        self._timed.seconds = dict.fromkeys(("encode", "decode"), 0.0)
        step = self._runner.run(self._seat, first=False).step
        if step % self._group_steps == 0:
            self._ring.free_through(step)
        return {**self._timed.seconds, **self._runner.seconds}

    def finish(self) -> None:
        pass


class _TimedRunner(StepRunner):
    """Measures handing the record over, and seals it."""

    seconds: Mapping[str, float] = {}

    def keep(self, record: Record) -> int:
        begun = time.perf_counter()
        length = super().keep(record)
        kept = time.perf_counter()
        assert self.last_record is not None
        seal_record(self.last_record)
        self.seconds = {"ring": kept - begun, "digest": time.perf_counter() - kept}
        return length


class _TimedCodec:
    """A codec that measures itself."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.seconds: dict[str, float] = {}

    @property
    def name(self) -> str:
        return self._codec.name

    def encoded_bytes(self, numel: int) -> int:
        return self._codec.encoded_bytes(numel)

    def encode(self, values: torch.Tensor, out: Buffer) -> None:
        with self._measured("encode"):
            self._codec.encode(values, out)

    def decode(self, data: Buffer, out: torch.Tensor) -> None:
        with self._measured("decode"):
            self._codec.decode(data, out)

    @contextmanager
    def _measured(self, part: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - begun


class SaveLoop(PlainLoop):
    """The baseline and torch.save of model and optimizer after each step."""

    def __init__(self, job: TrainJob, folder: Path) -> None:
        super().__init__(job)
        self._file = folder / "full.pt"

    def step(self) -> Mapping[str, float]:
        super().step()
        torch.save(self.full_state(), self._file)
        return {}


class DcpLoop(PlainLoop):
    """The baseline and torch.distributed.checkpoint's async_save after each step; one save at a time, as it wants."""

    def __init__(self, job: TrainJob, folder: Path, all_cores: set[int]) -> None:
        super().__init__(job)
        self._folder = folder / "dcp"
        self._all_cores = all_cores
        self._saving: Future[Any] | None = None

    def step(self) -> Mapping[str, float]:
        super().step()
        self.finish()
        # Its thread inherits our cores when it starts: it may use the one that is not for training.
        own = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self._all_cores)
        try:
            saving = async_save(self.full_state(), checkpoint_id=self._folder)
        finally:
            os.sched_setaffinity(0, own)
        assert isinstance(saving, Future)
        self._saving = saving
        return {}

    def finish(self) -> None:
        if self._saving is not None:
            self._saving.result()
            self._saving = None


def make_loop(name: str, job: TrainJob, folder: Path, all_cores: set[int]) -> Loop:
    """The loop of that name, with which RecordLoop has that of its codec."""
    if name in CODECS:
        return RecordLoop(TrainJob.parse(job.document(), set={"codec": name}))
    if name == "plain":
        return PlainLoop(job)
    if name == "torch.save":
        return SaveLoop(job, folder)
    assert name == "DCP", name
    return DcpLoop(job, folder, all_cores)


def _nothing(*_: object) -> None:
    pass


def _no_slot() -> int:
    raise AssertionError("the ring is given back as it fills")
