"""Getting records and bases to storage, the supervisor's side: decide with the ledger, order agents, book results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from openclaw_tasks.checkpoint.lineage import BaseRef, BaseSpec, GroupRef
from openclaw_tasks.checkpoint.writer import BaseResult, GroupResult, RunWriter
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.errors import FencedError, OpenClawError
from openclaw_tasks.gang.board import Board
from openclaw_tasks.gang.ledger import Ledger, Span
from openclaw_tasks.gang.wire import Frame
from openclaw_tasks.observe.events import EventLog

Tell = Callable[[str, Frame], None]

PROBLEM_SECONDS = 10.0  # a storage problem that lasts is told again this often


def base_result(frame: Frame) -> BaseResult:
    """A base that was put, as an agent or a job beside training tells it."""
    return BaseResult(BaseRef.from_json(frame["ref"]), frame["stored_bytes"], frame["acked"], frame["degraded"])


class Keeping:
    """One for each attached writer."""

    def __init__(self, writer: RunWriter, job: TrainJob, events: EventLog, board: Board, tell: Tell) -> None:
        self._writer = writer
        self._job = job
        self._events = events
        self._board = board
        self._tell = tell
        self._ledger = Ledger(writer.durable_step, job.store.group_steps)
        self._held: dict[int, str] = {}  # base step -> agent that holds the copy
        self._putting: tuple[int, str] | None = None
        self._had_first_base = self._is_making_first_base = False
        self._retry_base_at = 0.0
        self._settling = False
        self._problem: str | None = None
        self._told_problem_at = 0.0
        self._missing: set[int] = set(board.read(lambda facts: facts.missing_targets))
        self._agents: Sequence[str] = ()
        bases = {base.step for base in writer.lineage.bases}
        board.update(lambda facts: facts.bases.update(bases))

    @property
    def restore_step(self) -> int | None:
        """Where a gang without a state finds one; None while storage holds no base."""
        return self._ledger.durable_step if self._writer.lineage.bases else None

    def durable_frame(self) -> Frame:
        """What agents must know to free their rings, and to flush on their own if the supervisor dies."""
        step = self._ledger.durable_step
        spec = None
        if self._writer.lineage.bases:
            spec = self._writer.group_spec(step + 1, step + 1, self._job.codec).to_json()
        return {"type": "durable", "step": step, "next": spec}

    def hurry(self, through: int | None = None) -> None:
        """Put what is final (up to `through`) without waiting for a full group."""
        everything = 2**62
        self._ledger.urgent_through = max(self._ledger.urgent_through, everything if through is None else through)

    def tell_when_settled(self) -> None:
        """Note on the board when no final record waits any more."""
        self._settling = True

    def tell_agents(self, pids: Sequence[int]) -> None:
        """These processes flush on their own when the flow's process dies."""
        self._writer.set_agents([{"pid": pid} for pid in pids])

    def forget(self, agent: str) -> None:
        """The agent is gone, and what it held."""
        self._ledger.forget(agent)
        self._held = {step: holder for step, holder in self._held.items() if holder != agent}
        if self._putting is not None and self._putting[1] == agent:
            self._putting = None
        self._note_pending()

    def take(self, agent: str, frame: Frame, now: float) -> None:
        """News of an agent's storage work."""
        match frame["type"]:
            case "records":
                self._ledger.holds(agent, Span(frame["first"], frame["last"], frame["bytes"]))
            case "base-held":
                self._held[frame["step"]] = agent
                self._had_first_base = self._had_first_base or frame["step"] == 0
                self._note_pending()
            case "group-done":
                self._group_done(agent, frame, now)
            case "base-done":
                self._base_done(frame, now)

    def work(self, now: float, agents: Sequence[str]) -> OpenClawError | None:
        """Order what is due. Returns the error that ends the run, if there is one."""
        self._agents = agents
        if self._writer.fenced.is_set():
            return FencedError(
                f"run {self._job.run!r}: a newer start holds it; this one has ended without writing more"
            )
        self._order_base(now)
        if self._writer.lineage.bases:
            order = self._ledger.next_order(now)
            if order is not None:
                spec = self._writer.group_spec(order.first, order.last, self._job.codec)
                self._tell(order.agent, {"type": "put-group", "spec": spec.to_json()})
        is_all_put = self._ledger.newest <= self._ledger.durable_step or self.is_hopeless()
        if self._settling and self._ledger.in_flight is None and is_all_put:
            self._settling = False
            self._ledger.urgent_through = self._ledger.durable_step  # from here on full groups again
            self._board.update(lambda facts: setattr(facts, "is_settled", True))
        return None

    def start_anew(self) -> None:
        """The gang begins again after the durable step: what agents held beyond it is not waited for."""
        self._ledger.forget_all()

    def is_hopeless(self, ended_at: int = 0) -> bool:
        """Whether the next record to put is held by nobody: the log cannot go on from memory.

        `ended_at`: the step after which all ranks have left, if they have.
        """
        return self._ledger.is_hopeless(self._agents, ended_at)

    @property
    def can_start_anew(self) -> bool:
        """Whether a fresh gang would find the durable step: storage must answer, and hold a base."""
        return self._writer.can_be_read and bool(self._writer.lineage.bases)

    def first_base_to_make(self, now: float) -> BaseSpec | None:
        """The base of step 0, if the only copy was lost: a job beside training can make it from the recipe.

        Without a base nothing can be put, so a run would wait for ever. Told again if `first_base_failed`.
        """
        is_due = self._had_first_base and not self._is_making_first_base and now >= self._retry_base_at
        if not is_due or self._writer.lineage.bases or 0 in self._held or self._putting is not None:
            return None
        self._is_making_first_base = True
        return self._writer.base_spec(0)

    def first_base_failed(self, problem: str, now: float) -> None:
        """The job beside training gave no base of step 0."""
        self._is_making_first_base = False
        self._retry_base_at = now + 1.0
        self._note_problem(f"base of step 0: {problem}")

    def _order_base(self, now: float) -> None:
        if self._putting is not None or now < self._retry_base_at:
            return
        due = sorted(step for step in self._held if step <= self._ledger.durable_step)
        if due:
            step, agent = due[0], self._held[due[0]]
            self._putting = step, agent
            self._tell(agent, {"type": "put-base", "spec": self._writer.base_spec(step).to_json()})

    def _group_done(self, agent: str, frame: Frame, now: float) -> None:
        spec = frame["spec"]
        current = self._ledger.in_flight
        if current is None or current.agent != agent or (current.first, current.last) != (spec["first"], spec["last"]):
            return  # an attempt that has been given up since
        if frame["error"] is not None:
            self._ledger.failed(now)
            self._note_problem(f"steps {spec['first']} to {spec['last']}: {frame['error']}")
            return
        result = GroupResult(GroupRef.from_json(frame["ref"]), frame["stored_bytes"], frame["acked"], frame["degraded"])
        self._writer.record_group(result)
        self._ledger.done(result.ref.last)
        self._note_problem(None)
        self._note_missing({int(index): why for index, why in frame["missing"].items()})
        ref = result.ref
        self._events.emit(
            "durable",
            step=ref.last,
            log_bytes=result.stored_bytes,
            degraded=result.degraded,
            group=f"{ref.epoch}-{ref.seq}",
        )
        step = self._ledger.durable_step
        self._board.update(lambda facts: setattr(facts, "durable_step", step))
        message = self.durable_frame()
        for name in list(self._agents):
            self._tell(name, message)

    def _base_done(self, frame: Frame, now: float) -> None:
        step = frame["spec"]["step"]
        self._putting = None
        if frame["error"] is not None:
            self._retry_base_at = now + 1.0
            self._note_problem(f"base of step {step}: {frame['error']}")
            return
        self.base_kept(base_result(frame))

    def base_kept(self, result: BaseResult) -> None:
        """A base is in storage."""
        step = result.ref.step
        self._writer.record_base(result)
        self._events.emit(
            "base",
            step=step,
            bytes=result.stored_bytes,
            degraded=result.degraded,
            base=f"{step}-{result.ref.epoch}",
        )
        self._held = {held: agent for held, agent in self._held.items() if held > step}
        self._board.update(lambda facts: facts.bases.add(step))
        self._note_pending()
        message = {**self.durable_frame(), "type": "durable"}
        for name in list(self._agents):
            self._tell(name, {"type": "drop-bases", "through": step})
            self._tell(name, message)

    def _note_pending(self) -> None:
        pending = set(self._held)
        if self._putting is not None:
            pending.add(self._putting[0])
        self._board.update(lambda facts: setattr(facts, "bases_pending", pending))

    def _note_missing(self, missing: Mapping[int, str]) -> None:
        """Tell once of each target that is gone, and of its return."""
        for index in sorted(missing.keys() - self._missing):
            spare = self._job.store.redundancy - len(missing)
            self._events.emit("storage", target=index, problem=missing[index], spare=spare)
        for index in sorted(self._missing - missing.keys()):
            self._events.emit("storage", target=index, problem=None)
        self._missing = set(missing)

    def _note_problem(self, problem: str | None) -> None:
        """Tell of storage problems when they begin, now and then while they last, and when they are over."""
        now = time.monotonic()
        if (problem is None) != (self._problem is None) or (problem and now - self._told_problem_at > PROBLEM_SECONDS):
            self._events.emit("storage", target=None, problem=problem)
            self._told_problem_at = now
        self._problem = problem
