"""The supervisor: one thread in the flow's process that owns the gang.

It listens for agents, feeds what happens to the recovery machine, carries out what the machine says, orders groups
and bases to storage, strikes the faults a test asked for, and writes the event log. Stages of the flow look at its
`Board` and never at this thread.
"""

from __future__ import annotations

import selectors
import sys
import threading
import time
import traceback
from collections import deque
from typing import Any

from openclaw_tasks.checkpoint.writer import BaseResult, RunWriter
from openclaw_tasks.config.faults import Fault
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.errors import OpenClawError, RunError
from openclaw_tasks.gang.board import Board, Facts
from openclaw_tasks.gang.keeping import Keeping, base_result
from openclaw_tasks.gang.losses import Loss, LossWatch
from openclaw_tasks.gang.mailbox import Mailbox
from openclaw_tasks.gang.ranks import Agreement, error_of, formation_message
from openclaw_tasks.gang.reception import Reception
from openclaw_tasks.gang.spares import Answer, SpareJobs
from openclaw_tasks.gang.strikes import Strikes
from openclaw_tasks.gang.wire import Frame
from openclaw_tasks.observe.events import EventLog
from openclaw_tasks.recovery import machine
from openclaw_tasks.recovery.machine import Phase

_TICK_SECONDS = 0.02
# An agent that has just come may still tell that it holds them; and longer than a heartbeat, which tells whether a
# fresh gang could start from storage at all.
_HOPELESS_SECONDS = 3.0


class Supervisor:
    """Start with `start()`; everything else is a request to its thread, or a look at `board`."""

    def __init__(self, job: TrainJob, events: EventLog, token: bytes, faults: tuple[Fault, ...]) -> None:
        self.board = Board()
        self._job = job
        self._events = events
        self._selector = selectors.DefaultSelector()
        self._reception = Reception(job.cluster.host, token, job.fault_tolerance.lease, self._selector, owner=self)
        self.address = self._reception.address
        self._requests = Mailbox()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._running = True
        self._spares = SpareJobs(job, self.board, self._tell)
        self._first_base_job: int | None = None
        self._waiting: frozenset[int] = frozenset()  # members that wait for storage
        self._machine: machine.State | None = None
        self._events_due: deque[machine.Event] = deque()
        self._keeping: Keeping | None = None
        self._strikes = Strikes(faults)
        self._losses = LossWatch()
        self._agreement = Agreement()
        self._struck_agents: dict[str, tuple[float, int]] = {}  # when, and in which step
        self._hopeless_since: float | None = None

    # For the flow's threads

    def start(self) -> None:
        """Begin to listen for agents."""
        self._thread.start()

    def attach(self, writer: RunWriter) -> None:
        """The run is ours to write: start ranks on every agent, now and as agents come."""
        self._requests.ask(lambda: self._attach(writer))

    def restart(self) -> None:
        """Begin again with fresh ranks after the gang was lost."""
        # Here, not in the thread: who waits for the fresh gang must not meet the loss of the old one.
        self.board.update(_forget_the_end)
        self._requests.ask(self._restart)

    def request_stop(self) -> None:
        """Let the ranks end together after the step they are in."""
        self._requests.ask(lambda: self._feed(machine.StopRequested()))

    def flush(self) -> None:
        """Put whatever is final now, without waiting for full groups."""
        self._requests.ask(self._flush_records)

    def run_spare(self, kind: str, arguments: dict[str, Any], agent: str | None = None) -> int:
        """Ask an agent for a job beside training; its answer appears on the board under the returned number."""
        number = self._spares.next_number()
        self._requests.ask(lambda: self._start_spare(number, {"kind": kind, **arguments}, agent))
        return number

    def keep_base(self, result: BaseResult) -> None:
        """A base that a job beside training has put."""
        self._requests.ask(lambda: self._keeping.base_kept(result) if self._keeping else None)

    def close(self) -> None:
        """End the agents and this thread. Returns when both are gone or have been told."""
        if self._thread.is_alive():
            self._requests.ask(self._end)
            self._thread.join(10.0)
        self._requests.close()

    # The thread

    def _run(self) -> None:
        self._selector.register(self._requests, selectors.EVENT_READ, self._requests.answer)
        try:
            while self._running:
                for key, _ in self._selector.select(_TICK_SECONDS):
                    key.data()
                self._tick(time.monotonic())
        except Exception as error:  # noqa: BLE001 - the thread's outermost loop: the stages that wait must hear of it
            traceback.print_exc(file=sys.stderr)
            self._fail(RunError(f"the supervisor failed: {type(error).__name__}: {error}"))
        finally:
            self._reception.close()
            self._selector.close()

    def _end(self) -> None:
        for name in self._reception.names:
            self._tell(name, {"type": "end"})
        self._running = False

    def _tick(self, now: float) -> None:
        self._reception.tick(now)
        if self._machine is not None:
            self._feed(machine.Tick(now))
        if self._keeping is not None:
            self._keep(now)

    # Agents

    def agent_joined(self, name: str) -> None:
        """An agent has come: it learns the job, and what is durable."""
        self._tell(name, {"type": "welcome", "job": self._job.document()})
        self._note_agents()
        if self._keeping is not None:
            self._tell(name, self._keeping.durable_frame())
        self._feed(machine.AgentJoined(name))

    def agent_lost(self, name: str, reason: str) -> None:
        """An agent is gone, and with it its rank, its records and its jobs beside training."""
        now = time.monotonic()
        self._note_agents()
        self._events.emit("agent-lost", agent=name, reason=reason)
        if self._keeping is not None:
            self._keeping.forget(name)
        for answer in self._spares.lost(name):
            self._spare_answered(answer)
        if self._machine is not None and any(member.agent == name for member in self._machine.members):
            struck_at, step = self._struck_agents.pop(name, (now, 0))
            self._note_loss("agent lost", struck_at, now, open_step=step)
        self._feed(machine.AgentLost(name, now))

    def _tell(self, name: str, frame: Frame) -> None:
        self._reception.tell(name, frame)

    def _note_agents(self) -> None:
        names = self._reception.names
        self.board.update(lambda facts: setattr(facts, "agents", names))
        if self._keeping is not None:
            self._keeping.tell_agents(list(self._reception.pids().values()))

    # What agents say

    def agent_said(self, name: str, frame: Frame) -> None:
        """News from an agent, or from a process of its."""
        match frame["type"]:
            case "rank":
                self._take_rank(frame["member"], frame["message"])
            case "rank-exited":
                self._rank_exited(frame)
            case "rank-hung":
                self._rank_hung(frame)
            case "rank-started":
                self._events.emit("rank-started", member=frame["member"], agent=name, pid=frame["pid"])
            case "spare-done":
                self._spare_answered(frame)
            case "records" | "group-done" | "base-held" | "base-done" if self._keeping is not None:
                self._keeping.take(name, frame, time.monotonic())
                self._keep(time.monotonic())

    def _take_rank(self, member: int, message: dict[str, Any]) -> None:
        assert self._machine is not None
        if self._machine.member(member) is None:
            # It has been given up: what it still says of its gang is no news of the run.
            if message["type"] == "step":
                self._losses.applied(message["step"], message["generation"])
            return
        now = time.monotonic()
        match message["type"]:
            case "ready":
                self._rank_ready(member, message)
            case "meshed":
                self._losses.meshed(message["generation"], message["step"])
                self._feed(machine.Meshed(member, message["generation"]))
            case "step":
                self._step_done(message)
            case "broken":
                self._losses.applied(message["step"])
                for blamed in message["blamed"]:
                    self._feed(machine.LinkBroken(member, message["generation"], blamed, now))
                self._events.emit("link-broken", member=member, reason=message["reason"])
            case "boundary":
                self._boundary(member, message)
            case "base-refused":
                self._events.emit("base-refused", step=message["step"], reason=message["reason"])
                self.board.update(lambda facts: facts.bases_refused.update({message["step"]: message["reason"]}))
            case "recovered":
                for recovery in self._losses.regained(member, message):
                    self._events.emit("recovery", **recovery)
            case "held":
                self._strike(message["step"])
            case "left":
                self._losses.applied(message["step"])
                # Who reports the steps may have gone with its agent before its last words were heard.
                self.board.update(lambda facts: setattr(facts, "step", max(facts.step, message["step"])))
                self._feed(machine.RankLeft(member))
            case "waiting":
                self._note_waiting(member, message)
            case "error":
                self._fail(error_of(self._rank_name(member), self._rank_of(member), message))

    def _note_waiting(self, member: int, message: dict[str, Any]) -> None:
        """One wait of the gang, though each rank tells of its own."""
        was_waiting = bool(self._waiting)
        self._waiting = self._waiting - {member} if message["is_over"] else self._waiting | {member}
        if bool(self._waiting) != was_waiting:
            lag = f"storage lags by {message['slots']} steps: training waits for the durable step"
            self._events.emit("waiting", step=message["step"], reason=lag if self._waiting else None)

    def _rank_ready(self, member: int, message: dict[str, Any]) -> None:
        assert self._machine is not None
        known = self._machine.member(member)
        if known is None:
            return
        difference = self._agreement.check(self._rank_name(member), message)
        if difference is not None:
            self._fail(difference)
            return
        self._feed(machine.RankReady(member, (self._reception.host_of(known.agent), message["port"])))

    def _rank_of(self, member: int) -> int | None:
        """Its rank in the active formation, None if it is not in it."""
        assert self._machine is not None
        return self._machine.active.rank_of(member) if self._machine.active is not None else None

    def _rank_name(self, member: int) -> str:
        assert self._machine is not None
        rank = self._rank_of(member)
        known = self._machine.member(member)
        place = f" on {known.agent}" if known is not None else ""
        return f"rank {rank}{place}" if rank is not None else f"a new rank{place}"

    def _step_done(self, message: dict[str, Any]) -> None:
        step = message["step"]
        self._losses.applied(step, message["generation"])
        self._feed(machine.StepDone(message["generation"]))
        facts_of_step = {key: message[key] for key in ("step", "loss", "items", "seconds", "ranks")}
        self._events.emit("step", **facts_of_step, items_per_second=message["items"] / message["seconds"])
        if not message["applied"]:
            self._events.emit("decision", step=step, decision="skip")
        self.board.update(lambda facts: setattr(facts, "step", step))

    def _boundary(self, member: int, message: dict[str, Any]) -> None:
        difference = self._agreement.check_digests(self._rank_name(member), message)
        if difference is not None:
            self._fail(difference)
            return
        step = message["step"]
        facts_of_step = {key: message[key] for key in ("weights_digest", "state_digest", "applied")}
        if self.board.read(lambda facts: step not in facts.digests):
            self._events.emit("boundary", step=step, **facts_of_step)
        size = message["full_bytes"]
        self.board.update(lambda facts: setattr(facts, "full_checkpoint_bytes", size))
        self.board.update(lambda facts: facts.digests.setdefault(step, facts_of_step))
        if self._keeping is not None:
            self._keeping.hurry(step)

    def _rank_exited(self, frame: Frame) -> None:
        assert self._machine is not None
        now = time.monotonic()
        member = frame["member"]
        if frame["left_at"] is not None:
            self._feed(machine.RankLeft(member))
            return
        self._waiting -= {member}
        if frame["failed"] or self._machine.member(member) is None:
            return
        cause = _cause_of_death(frame["status"])
        self._losses.applied(frame["step"] - 1)
        self._note_strike(member, frame["struck_at"])
        self._note_loss(cause, frame["struck_at"] or now, now, member, open_step=frame["step"])
        self._feed(machine.RankGone(member, cause, now))

    def _rank_hung(self, frame: Frame) -> None:
        now = time.monotonic()
        self._note_strike(frame["member"], frame["struck_at"])
        cause, kill_at = frame["reason"].split(":")[0], frame["struck_at"] or frame["moved_at"]
        self._note_loss(cause, kill_at, now, frame["member"], open_step=frame["step"])
        self._feed(machine.RankHung(frame["member"], frame["reason"], now))

    def _note_strike(self, member: int, struck_at: float | None) -> None:
        fault = self._strikes.struck_itself(member) if struck_at is not None else None
        if fault is not None:
            self._events.emit("fault", text=fault.text(), struck_at=struck_at)

    def _note_loss(
        self, cause: str, kill_at: float, now: float, member: int | None = None, *, open_step: int = 0
    ) -> None:
        """Something that belonged to the formation is gone; it was in `open_step`, if that is known.

        Rank 0's report of the step before may come later, from another agent.
        """
        assert self._machine is not None
        active = self._machine.active
        if active is None:
            return
        if member is not None and active.rank_of(member) is None:
            return
        step = max(self.board.read(lambda facts: facts.step) + 1, open_step)
        self._losses.lose(Loss(cause, step, kill_at, now))

    # The machine

    def _attach(self, writer: RunWriter) -> None:
        keeping = Keeping(writer, self._job, self._events, self.board, self._tell)
        self._keeping = keeping
        policy = machine.Policy(self._job.cluster.workers, self._job.logical_shards)
        self._machine = machine.State(policy, assembling_since=time.monotonic())
        resumed = writer.durable_step

        def stand(facts: Facts) -> None:
            facts.step = facts.durable_step = facts.resumed_step = resumed

        self.board.update(stand)
        self._note_agents()
        for name in self._reception.names:
            self._tell(name, keeping.durable_frame())
            self._feed(machine.AgentJoined(name))

    def _restart(self) -> None:
        """What is final has been put, as far as that can be: the steps after it are computed again."""
        if self._keeping is not None:
            self._keeping.start_anew()
        self.board.update(lambda facts: setattr(facts, "step", facts.durable_step))
        for name in self._reception.names:
            self._tell(name, {"type": "discard-records"})
        self._feed(machine.Restarted(time.monotonic()))

    def _feed(self, event: machine.Event) -> None:
        """Give the machine an event; what its instructions bring about waits until they are all carried out."""
        self._events_due.append(event)
        if len(self._events_due) > 1:
            return
        while self._events_due:
            self._advance(self._events_due[0])
            self._events_due.popleft()

    def _advance(self, event: machine.Event) -> None:
        if self._machine is None or self.board.read(lambda facts: facts.error is not None):
            return
        before = self._machine
        self._machine, instructions = machine.advance(before, event)
        for instruction in instructions:
            self._carry_out(instruction)
        running = self._machine.phase is Phase.RUNNING
        if running != (before.phase is Phase.RUNNING):
            self.board.update(lambda facts: setattr(facts, "is_running", running))

    def _carry_out(self, instruction: machine.Instruction) -> None:
        match instruction:
            case machine.StartRank(agent, member):
                self._tell(agent, {"type": "start-rank", "member": member, "path": sys.path})
            case machine.KillRank(member, agent):
                self._tell(agent, {"type": "kill-rank", "member": member})
            case machine.Announce(formation):
                self._announce(formation)
            case machine.TellStop(members):
                for member_ in members:
                    self._to_rank(member_, {"type": "stop"})
            case machine.ReportLost(cause):
                self._events.emit("gang-lost", cause=cause)
                if self._keeping is not None:
                    self._keeping.hurry()
                self.board.update(lambda facts: setattr(facts, "lost_cause", cause))
            case machine.ReportEnded():
                if self._keeping is not None:
                    self._keeping.hurry()
                for recovery in self._losses.end():
                    self._events.emit("recovery", **recovery)
                self.board.update(lambda facts: setattr(facts, "is_ended", True))

    def _announce(self, formation: machine.Formation) -> None:
        assert self._machine is not None
        assert self._keeping is not None
        members = [member.number for member in formation.members]
        if formation.cause == "start":
            self._strikes.number(members, [member.agent for member in formation.members])
        if formation.when == "now":
            self._losses.formed(formation.generation, frozenset(members), time.monotonic())
        inside = self._machine.active.members if self._machine.active else ()
        for member in formation.members:
            message = formation_message(
                formation,
                member.number,
                newcomer=formation.when == "boundary" and member not in inside,
                restore_step=self._keeping.restore_step,
                kill_at=self._losses.kill_at if formation.when == "now" else None,
                strikes=self._strikes.of_member(member.number),
                holds=self._strikes.holds(),
                stop=self._machine.stopping,
            )
            self._to_rank(member, message)
        from_step = self.board.read(lambda facts: facts.step) + 1
        self._events.emit(
            "generation",
            number=formation.generation,
            from_step=from_step,
            ranks=len(members),
            cause=formation.cause,
            members=members,
        )
        self.board.update(lambda facts: setattr(facts, "ranks", len(members)))

    def _to_rank(self, member: machine.Member, message: dict[str, Any]) -> None:
        self._tell(member.agent, {"type": "to-rank", "member": member.number, "message": message})

    def _strike(self, step: int) -> None:
        """A rank is at the point of a step where something is to be struck: do it, then let all go on."""
        pids = self._reception.pids()

        def before(fault: Fault, at: float) -> None:
            self._events.emit("fault", text=fault.text(), struck_at=at)
            agent = self._strikes.agent_of(fault)
            if agent is not None and fault.kind == "kill-agent":
                self._struck_agents[agent] = at, step

        self._strikes.strike(step, pids, self._job.store.targets, before)
        assert self._machine is not None
        for member in self._machine.members:
            self._to_rank(member, {"type": "release", "step": step})

    def _fail(self, error: OpenClawError) -> None:
        """The first error is the run's error: end the ranks, keep what is final."""
        if self.board.read(lambda facts: facts.error is not None):
            return
        self._events.emit("rank-error", error=str(error))
        if self._machine is not None:
            for member in self._machine.members:
                self._tell(member.agent, {"type": "kill-rank", "member": member.number})
        if self._keeping is not None:
            self._keeping.hurry()
        self.board.update(lambda facts: setattr(facts, "error", error))

    # Storage and spare jobs

    def _flush_records(self) -> None:
        self.board.update(lambda facts: setattr(facts, "is_settled", False))
        if self._keeping is None:
            self.board.update(lambda facts: setattr(facts, "is_settled", True))
            return
        self._keeping.hurry()
        self._keeping.tell_when_settled()

    def _give_up(self, now: float) -> None:
        """What the ranks know can never be stored: the steps after the durable one are to be computed again."""
        assert self._hopeless_since is not None
        cause = "the agents that held the next records are gone, before these were in storage"
        step = self.board.read(lambda facts: facts.step) + 1
        self._losses.lose(Loss(cause, step, self._hopeless_since, now))
        self._hopeless_since = None
        self._feed(machine.GaveUp(cause))

    def _keep(self, now: float) -> None:
        assert self._keeping is not None
        if not (self._keeping.is_hopeless(self._ended_at) and self._keeping.can_start_anew):
            self._hopeless_since = None
        elif self._hopeless_since is None:
            self._hopeless_since = now
        elif now - self._hopeless_since > _HOPELESS_SECONDS:
            self._give_up(now)
        spec = self._keeping.first_base_to_make(now)
        if spec is not None:
            number = self._first_base_job = self._spares.next_number()
            self._start_spare(number, {"kind": "compact", "step": 0, "base": spec.to_json()}, agent=None)
        error = self._keeping.work(now, self._reception.names)
        if error is not None:
            self._fail(error)

    @property
    def _ended_at(self) -> int:
        """The run's last step, if all ranks have left after it; else 0."""
        has_ended = self._machine is not None and self._machine.phase is Phase.ENDED and not self._machine.stopping
        return self._job.steps if has_ended else 0

    def _start_spare(self, number: int, spec: dict[str, Any], agent: str | None) -> None:
        names = [name for name in sorted(self._reception.names) if agent in (None, name)]
        refusal = self._spares.start(number, spec, names)
        if refusal is not None:
            self._spare_answered(refusal)

    def _spare_answered(self, answer: Answer) -> None:
        if answer["number"] == self._first_base_job and self._keeping is not None:
            if answer["ok"]:
                self._keeping.base_kept(base_result(answer))
            else:
                self._keeping.first_base_failed(answer["error"], time.monotonic())
        self._spares.answered(answer)


def _forget_the_end(facts: Facts) -> None:
    facts.lost_cause, facts.is_ended = None, False


def _cause_of_death(status: int) -> str:
    if status < 0:
        return f"rank killed by signal {-status}"
    return f"rank exited with status {status}"
