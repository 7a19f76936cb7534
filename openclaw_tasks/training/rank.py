"""A rank: one process that trains its share of each step in whatever formation the supervisor makes.

`main` is what the launcher's child runs. The rank talks to its agent over a control line, to its peers over the mesh,
and shows that it moves on its progress page. It has one thread.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

from openclaw_tasks.collectives.mesh import Listener, Mesh
from openclaw_tasks.collectives.topology import topology_named
from openclaw_tasks.collectives.transport import ExchangeTimeoutError, LinkBrokenError
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.errors import NonFiniteError, OpenClawError
from openclaw_tasks.training.boundary import report_boundary
from openclaw_tasks.training.build import build_training
from openclaw_tasks.training.clock import UsefulTime
from openclaw_tasks.training.control import ControlChannel, ControlClosed
from openclaw_tasks.training.join import NOTHING, Member, Standing, catch_up
from openclaw_tasks.training.orders import Dismissed, Formation, FormationChanged, Orders
from openclaw_tasks.training.progress import Phase, ProgressPage
from openclaw_tasks.training.restore import restore_state
from openclaw_tasks.training.ring import RecordRing
from openclaw_tasks.training.step import Asides, Seat, StepResult, StepRunner

# A peer that moves no byte for so long is given up even if nobody else has found it dead or frozen. Long, since
# agents watch their ranks and find those sooner, and a rank that waits for storage, or computes, is not silent.
_EXCHANGE_SECONDS = 300.0
_MESH_SECONDS = 300.0


class Rank:
    """The life of one rank process."""

    def __init__(self, spec: dict[str, Any], line: ControlChannel, progress: ProgressPage) -> None:
        self._spec = spec
        self._job = TrainJob.parse(spec["job"])
        self._line = line
        self._progress = progress
        self._token = bytes.fromhex(spec["token"])
        self._orders = Orders(line, progress)
        self._useful = UsefulTime()
        self._listener = Listener(spec["host"])
        self._has_state = False
        self._finishing = False
        self._skipped_in_a_row = 0
        self._told_waiting = False

    def run(self) -> None:
        """Build what the recipe says, then train until the group leaves."""
        self._training = build_training(self._job)
        self._ring = self._make_ring()
        self._runner = StepRunner(
            self._training,
            self._ring,
            self._progress,
            self._useful,
            Asides(self._orders.breathe, self._at_half, self._wait_for_slot),
            _EXCHANGE_SECONDS,
        )
        self._line.send(
            {
                "type": "ready",
                "port": self._listener.port,
                "fingerprints": dict(self._training.fingerprints),
                "layout": self._training.state.layout.digest(),
            },
            fds=[self._ring.fd],
        )
        while True:
            formation = self._orders.next_formation()
            try:
                if self._serve(formation):
                    return
            except FormationChanged:
                continue
            except (LinkBrokenError, ExchangeTimeoutError) as error:
                self._report_broken(formation, error)

    def _make_ring(self) -> RecordRing:
        bounds = self._job.fault_tolerance
        record_bytes = self._training.state.max_record_bytes()
        slots = max(1, min(bounds.max_unprotected_steps, bounds.max_unprotected_bytes // record_bytes))
        return RecordRing.create(slots, record_bytes)

    def _serve(self, formation: Formation) -> bool:
        """Train in this formation; True when the group has left, False when it changes to another."""
        self._progress.enter(Phase.JOINING, self._training.state.step)
        mesh = Mesh.connect(
            self._listener,
            formation.rank,
            formation.addresses,
            formation.generation,
            self._token,
            deadline_seconds=_MESH_SECONDS,
            on_idle=self._orders.breathe,
        )
        meshed_at = time.monotonic()
        try:
            return self._train(formation, self._join(formation, mesh), meshed_at)
        finally:
            mesh.close()

    def _join(self, formation: Formation, mesh: Mesh) -> Seat:
        state = self._training.state
        standing = Standing(state.step if self._has_state else NOTHING, self._finishing)
        member = Member(
            self._training,
            standing,
            self._runner.last_record,
            first_state=lambda: self._first_state(formation),
            take_record=self._take_record,
        )
        self._finishing = catch_up(mesh, member, deadline_seconds=_EXCHANGE_SECONDS, on_idle=self._orders.breathe)
        self._has_state = True
        self._line.send({"type": "meshed", "generation": formation.generation, "step": state.step})
        return Seat(
            formation.generation,
            formation.rank,
            formation.runs,
            formation.open_runs,
            mesh,
            topology_named("direct"),
        )

    def _first_state(self, formation: Formation) -> None:
        """Restore what storage holds; the recipe's own initial state stands for a run without any."""
        if formation.restore_step is not None:
            restore_state(self._job, self._training.state, formation.restore_step, on_record=self._progress.beat)
        else:
            report_boundary(self._line, self._training.state, carries_base=True)

    def _take_record(self, record: Any) -> None:
        self._runner.keep(record)
        self._runner.apply(record)

    def _train(self, formation: Formation, seat: Seat, meshed_at: float) -> bool:
        state = self._training.state
        first = True
        computing_at = time.monotonic()
        while not self._finishing and state.step < self._job.steps:
            self._orders.leave_if_replaced()
            self._runner.heard, self._runner.stop = self._orders.heard, self._orders.stop
            result = self._runner.run(seat, first=first)
            if first and formation.kill_at is not None:
                self._report_recovery(formation, meshed_at, computing_at)
            first = False
            self._after_step(seat, result)
            if result.decision.stop:
                self._finishing = True
            elif result.decision.next_generation is not None:
                self._orders.change_to(result.decision.next_generation)
                return False
        self._finish(seat)
        return True

    def _after_step(self, seat: Seat, result: StepResult) -> None:
        if self._told_waiting:
            self._tell_waiting(result.step, is_over=True)
        if seat.rank == 0:
            self._line.send(
                {
                    "type": "step",
                    "generation": seat.generation,
                    "step": result.step,
                    "loss": result.loss if result.applied else None,
                    "items": result.items,
                    "seconds": result.seconds,
                    "bytes": result.record_bytes,
                    "ranks": seat.transport.world_size,
                    "applied": result.applied,
                }
            )
        self._skipped_in_a_row = 0 if result.applied else self._skipped_in_a_row + 1
        limit = self._job.fault_tolerance.max_skipped_steps
        if self._skipped_in_a_row > limit:
            raise NonFiniteError(
                f"step {result.step}: the gradient was not finite in {self._skipped_in_a_row} steps in a row "
                f"(fault_tolerance.max_skipped_steps={limit}); lower the learning rate, or look at these steps' data"
            )
        if result.step % self._job.segment_steps == 0 or result.step == self._job.steps:
            self._progress.beat()
            report_boundary(self._line, self._training.state, carries_base=seat.rank == 0)

    def _finish(self, seat: Seat) -> None:
        """A last barrier makes the last record final; then leave."""
        step = self._training.state.step
        self._finishing = True
        self._progress.enter(Phase.LEAVING, step)
        peers = [rank for rank in range(seat.transport.world_size) if rank != seat.rank]
        seat.transport.exchange(
            {peer: [b"\0"] for peer in peers},
            {peer: [bytearray(1)] for peer in peers},
            deadline_seconds=_EXCHANGE_SECONDS,
            on_idle=self._orders.breathe,
        )
        self._ring.mark_final(step)
        self._line.send({"type": "left", "step": step})

    def _report_recovery(self, formation: Formation, meshed_at: float, computing_at: float) -> None:
        assert formation.kill_at is not None
        now = time.monotonic()
        self._line.send(
            {
                "type": "recovered",
                "generation": formation.generation,
                "meshed_at": meshed_at,
                "computing_at": computing_at,
                "done_at": now,
                "useful_seconds": self._useful.between(formation.kill_at, now),
            }
        )

    def _report_broken(self, formation: Formation, error: LinkBrokenError | ExchangeTimeoutError) -> None:
        peers = [error.peer] if isinstance(error, LinkBrokenError) else list(error.peers)
        self._line.send(
            {
                "type": "broken",
                "generation": formation.generation,
                "blamed": [formation.members[peer] for peer in peers],
                "reason": str(error),
                "step": self._training.state.step,
            }
        )

    def _at_half(self, step: int) -> None:
        """The point of a step at which a fault strikes."""
        fault = self._orders.strike_at(step)
        if fault is not None:
            self._progress.strike()
            os.kill(os.getpid(), signal.SIGKILL if fault == "kill-rank" else signal.SIGSTOP)
        self._orders.hold_at(step)

    def _wait_for_slot(self) -> int:
        """Storage lags by max_unprotected_steps: wait, visibly, until a record becomes durable."""
        step = self._training.state.step + 1
        self._progress.enter(Phase.STORAGE_WAIT, step)
        begun = time.monotonic()
        while (slot := self._ring.claim()) is None:
            self._orders.breathe()
            time.sleep(0.002)
            if not self._told_waiting and time.monotonic() - begun > 1.0:
                self._tell_waiting(step, is_over=False)
        return slot

    def _tell_waiting(self, step: int, *, is_over: bool) -> None:
        self._told_waiting = not is_over
        self._line.send({"type": "waiting", "step": step, "slots": self._ring.slots, "is_over": is_over})


def main(spec: dict[str, Any], fds: Sequence[int]) -> int:
    """The child's life after the fork; returns its exit status."""
    line = ControlChannel.adopt(fds[0])
    progress = ProgressPage(fds[1])
    sys.path.extend(entry for entry in spec["path"] if entry not in sys.path)
    try:
        Rank(spec, line, progress).run()
    except (ControlClosed, Dismissed):
        return 0  # nobody needs this rank any more
    except Exception as error:  # noqa: BLE001 - the process's outermost loop: the user's error is the run's error
        return _report_error(line, progress, error)
    return 0


def _report_error(line: ControlChannel, progress: ProgressPage, error: Exception) -> int:
    text = "".join(traceback.format_exception(error))
    print(text, file=sys.stderr, flush=True)
    line.send(
        {
            "type": "error",
            "error": type(error).__name__,
            "exit_status": getattr(error, "exit_status", 1),
            "is_ours": isinstance(error, OpenClawError),
            "message": str(error)[:2_000],
            "traceback": text[-15_000:],
            "step": progress.step,
        }
    )
    return 1
