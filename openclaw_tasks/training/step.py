"""One step of one rank: its shards' gradients, the canonical exchange, the decision, the record, the update."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from openclaw_tasks.collectives.topology import ExchangePlan, Topology
from openclaw_tasks.collectives.transport import Transport
from openclaw_tasks.exact.apply import apply
from openclaw_tasks.exact.finite import all_finite
from openclaw_tasks.exact.record import Record
from openclaw_tasks.training.build import Training
from openclaw_tasks.training.clock import UsefulTime
from openclaw_tasks.training.compute import ShardResult
from openclaw_tasks.training.facts import (
    Decision,
    RankFacts,
    decide,
    decode_facts,
    encode_facts,
    max_facts_bytes,
    sum_facts,
)
from openclaw_tasks.training.open_step import OpenStep
from openclaw_tasks.training.progress import Phase, ProgressPage
from openclaw_tasks.training.ring import RecordRing


@dataclass(frozen=True, slots=True)
class Seat:
    """This rank's place in the formation it trains in."""

    generation: int
    rank: int
    runs: tuple[tuple[int, int], ...]
    open_runs: tuple[tuple[int, int], ...]
    transport: Transport
    topology: Topology


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step was, for those who watch."""

    step: int
    applied: bool
    loss: float  # mean per item
    items: int
    seconds: float
    record_bytes: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class Asides:
    """What a step does in the pauses; all may raise to leave the step (it stays open and is gone on with later)."""

    breathe: Callable[[], None]  # called at least each 50 ms in a wait, and between shards
    at_half: Callable[[int], None]  # half of this rank's slices are sent (alone: before encoding)
    wait_for_slot: Callable[[], int]  # a free slot of the ring


class StepRunner:
    """Holds the buffers that steps use again and again."""

    def __init__(
        self,
        training: Training,
        ring: RecordRing,
        progress: ProgressPage,
        useful: UsefulTime,
        asides: Asides,
        exchange_seconds: float,
    ) -> None:
        self._training = training
        self._state = training.state
        self._ring = ring
        self._progress = progress
        self._useful = useful
        self._asides = asides
        self._exchange_seconds = exchange_seconds
        self._encoded = np.zeros(self._state.codec.encoded_bytes(self._state.layout.numel), np.uint8)
        self._open = OpenStep(self._state.step + 1)
        self.last_record: memoryview | None = None  # of the last applied step, for members that lack it
        self.heard = 0
        self.stop = False

    def run(self, seat: Seat, *, first: bool) -> StepResult:
        """Do the next step. `first`: the formation's first, for which its `open_runs` hold."""
        begun = time.monotonic()
        step = self._state.step + 1
        if self._open.step != step:
            self._open = OpenStep(step)
        plan = self._plan(seat, seat.open_runs if first else seat.runs)
        run = plan.runs[plan.rank]
        self._progress.enter(Phase.COMPUTING, step)
        nodes = self._open.nodes(run, self._compute)
        self._progress.enter(Phase.EXCHANGING, step)
        mine = self._reduce(seat, plan, nodes, step)
        facts = self._gather(seat, plan, mine, run)
        decision = decide(facts, seat.generation)
        record = self._record(step, facts, decision)
        # Everybody is in this step, so nobody can make another version of the one before. Before the new one is
        # kept: that may have to wait until the older ones are in storage.
        self._ring.mark_final(step - 1)
        length = self.keep(record)
        if seat.transport.world_size == 1:
            self._ring.mark_final(step)
        self.apply(record)
        seconds = time.monotonic() - begun
        self._progress.took(seconds)
        return StepResult(
            step,
            record.decision == "apply",
            record.loss / max(record.items, 1),
            record.items,
            seconds,
            length,
            decision,
        )

    def _plan(self, seat: Seat, runs: tuple[tuple[int, int], ...]) -> ExchangePlan:
        return ExchangePlan(seat.rank, runs, self._state.layout.slices(seat.transport.world_size))

    def _compute(self, shard: int) -> ShardResult:
        self._asides.breathe()
        with self._useful.measure():
            return self._training.computer.compute(self._open.step, shard)

    def _reduce(
        self, seat: Seat, plan: ExchangePlan, nodes: dict[tuple[int, int], torch.Tensor], step: int
    ) -> torch.Tensor:
        if seat.transport.world_size == 1:
            self._asides.at_half(step)
        return seat.topology.reduce_scatter(
            seat.transport,
            plan,
            nodes,
            deadline_seconds=self._exchange_seconds,
            on_idle=self._asides.breathe,
            at_half=(lambda: self._asides.at_half(step)) if seat.transport.world_size > 1 else None,
        )

    def _gather(self, seat: Seat, plan: ExchangePlan, mine: torch.Tensor, run: tuple[int, int]) -> list[RankFacts]:
        codec = self._state.codec
        pieces = [self._encoded[codec.encoded_bytes(start) : codec.encoded_bytes(stop)] for start, stop in plan.slices]
        finite = all_finite(mine)
        if finite and mine.numel():  # what is not finite is skipped by all, and its bytes are never read
            codec.encode(mine, pieces[plan.rank])
        facts = RankFacts(
            shards={shard: self._open.facts[shard] for shard in range(*run)},
            finite=finite,
            heard=self.heard,
            stop=self.stop,
            buffers=self._open.buffers if run[0] == 0 < run[1] else (),
        )
        gathered = seat.topology.all_gather(
            seat.transport,
            plan,
            pieces[plan.rank],
            pieces,
            encode_facts(facts),
            max_facts_bytes=self._max_facts_bytes,
            deadline_seconds=self._exchange_seconds,
            on_idle=self._asides.breathe,
        )
        return [decode_facts(data) for data in gathered]

    @property
    def _max_facts_bytes(self) -> int:
        buffers = list(self._state.model.buffers())
        return max_facts_bytes(
            self._training.source.logical_shards,
            len(self._state.layout.entries),
            sum(buffer.numel() * buffer.element_size() for buffer in buffers),
            len(buffers),
        )

    def _record(self, step: int, facts: list[RankFacts], decision: Decision) -> Record:
        total = sum_facts(facts)
        applies = decision.apply and total.items > 0
        return Record(
            step=step,
            decision="apply" if applies else "skip",
            items=total.items,
            loss=total.loss,
            present=total.present,
            buffers=total.buffers if applies else (),
            codec=self._state.codec.name,
            payload=self._encoded.data if applies else memoryview(b""),
            scaler=None,
        )

    def keep(self, record: Record) -> int:
        """Put the record into the ring, waiting for a slot if storage lags; its length in bytes."""
        slot = self._ring.claim()
        if slot is None:
            slot = self._asides.wait_for_slot()
        buffer = self._ring.buffer(slot)
        # Sealed by whoever sends or stores it: hashing costs several times the writing.
        length = record.write_into(buffer, seal=False)
        self._ring.publish(slot, record.step, length)
        self.last_record = buffer[:length]
        return length

    def apply(self, record: Record) -> None:
        """The update of the record's step: the same function that recovery and verification use."""
        with self._useful.measure():
            apply(self._state, record)
