"""A step as the product takes it, with a clock in its joints (imports torch: for `scaling_rank` only)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from bench.scaling_plan import runs_of
from bench.scaling_rank import DEADLINE_SECONDS, TOKEN, Clock
from openclaw_tasks.collectives.direct import DirectTopology
from openclaw_tasks.collectives.frames import HEADER_BYTES
from openclaw_tasks.collectives.mesh import Listener, Mesh
from openclaw_tasks.collectives.topology import ExchangePlan
from openclaw_tasks.collectives.transport import ReceiveBuffer, SendBuffer, Transport
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.exact.canonical import Node
from openclaw_tasks.exact.codecs import Codec
from openclaw_tasks.exact.record import Buffer, Record
from openclaw_tasks.training.build import build_training
from openclaw_tasks.training.clock import UsefulTime
from openclaw_tasks.training.facts import RankFacts
from openclaw_tasks.training.progress import ProgressPage
from openclaw_tasks.training.ring import RecordRing
from openclaw_tasks.training.step import Asides, Seat, StepRunner

_RING_SLOTS = 2


class TimedTopology(DirectTopology):
    """Its exchanges begin when every rank is there: waiting for a slower one is not the exchange's cost."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.other_bytes = 0
        """Sent beside the gradient since this was set to 0: headers, the shards' facts, and what ranks meet by."""

    def reduce_scatter(
        self, transport: Transport, plan: ExchangePlan, nodes: Mapping[Node, Tensor], **how: Any
    ) -> Tensor:
        self._meet(transport)
        self.other_bytes += HEADER_BYTES * len(nodes) * (plan.world_size - 1)
        with self._clock.part("exchange"):
            return super().reduce_scatter(transport, plan, nodes, **how)

    def all_gather(
        self,
        transport: Transport,
        plan: ExchangePlan,
        mine: SendBuffer,
        outs: Sequence[ReceiveBuffer],
        facts: bytes,
        **how: Any,
    ) -> list[bytes]:
        self._meet(transport)
        self.other_bytes += (2 * HEADER_BYTES + len(facts)) * (plan.world_size - 1)
        with self._clock.part("exchange"):
            return super().all_gather(transport, plan, mine, outs, facts, **how)

    def _meet(self, transport: Transport) -> None:
        peers = [rank for rank in range(transport.world_size) if rank != transport.rank]
        self.other_bytes += (HEADER_BYTES + 1) * len(peers)
        transport.exchange(
            {peer: [b"\0"] for peer in peers},
            {peer: [bytearray(1)] for peer in peers},
            deadline_seconds=DEADLINE_SECONDS,
        )


class TimedCodec:
    """A codec, and the time it takes."""

    def __init__(self, codec: Codec, clock: Clock) -> None:
        self.name = codec.name
        self.encoded_bytes = codec.encoded_bytes
        self._codec = codec
        self._clock = clock

    def encode(self, values: Tensor, out: Buffer) -> None:
        with self._clock.part("encode"):
            self._codec.encode(values, out)

    def decode(self, data: Buffer, out: Tensor) -> None:
        with self._clock.part("decode"):
            self._codec.decode(data, out)


class TimedRunner(StepRunner):
    """`whole`: the step. `gather`: from the summed slice to the gathered record, the exchange in it."""

    def __init__(self, clock: Clock, *args: Any) -> None:
        super().__init__(*args)
        self._clock = clock

    def run(self, seat: Seat, *, first: bool) -> Any:
        with self._clock.part("whole"):
            return super().run(seat, first=first)

    def _gather(self, *args: Any) -> list[RankFacts]:
        exchange = self._clock.seconds.get("exchange", 0.0)
        with self._clock.part("gather"):
            facts = super()._gather(*args)
        self._clock.seconds["gather"] -= self._clock.seconds["exchange"] - exchange
        return facts

    def keep(self, record: Record) -> int:
        with self._clock.part("ring"):
            return super().keep(record)


class Stepper:
    """A rank that steps when it is told to."""

    def __init__(self, job: TrainJob) -> None:
        self._clock = clock = Clock()
        self._shards = job.logical_shards
        training = build_training(job)
        self._state = training.state
        self._state.codec = TimedCodec(self._state.codec, clock)
        self._ring = RecordRing.create(_RING_SLOTS, self._state.max_record_bytes())
        asides = Asides(lambda: None, lambda step: None, _ring_is_full)
        page = ProgressPage.create()
        self._runner = TimedRunner(clock, training, self._ring, page, UsefulTime(), asides, DEADLINE_SECONDS)
        self._topology = TimedTopology(clock)
        self._listener = Listener()

    @property
    def port(self) -> int:
        return self._listener.port

    def connect(self, rank: int, addresses: Sequence[tuple[str, int]]) -> None:
        self._mesh = mesh = Mesh.connect(self._listener, rank, addresses, 1, TOKEN, DEADLINE_SECONDS)
        runs = runs_of(self._shards, mesh.world_size)
        self._seat = Seat(1, rank, runs, runs, mesh, self._topology)

    def step(self) -> tuple[dict[str, float], int, int]:
        """As `scaling_rank.Step`."""
        self._clock.seconds, self._topology.other_bytes = {}, 0
        before = self._sent()
        self._runner.run(self._seat, first=False)
        self._ring.free_through(self._state.step)
        return self._clock.seconds, self._sent() - before, self._topology.other_bytes

    def digest(self) -> str:
        return self._state.state_digest()

    def close(self) -> None:
        self._mesh.close()
        self._listener.close()
        self._runner.last_record = None
        self._ring.close()

    def _sent(self) -> int:
        return sum(link.bytes_sent for link in self._mesh.links.values())


def _ring_is_full() -> int:
    raise AssertionError("each record is given free before the next step")
