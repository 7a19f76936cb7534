"""The agent: one process per place. Holds the record ring, puts groups and bases, starts and watches its rank.

Started by whoever places it (a Dask worker's plugin, or a local gang) as `python -m openclaw_tasks.gang.agent` and the
address of the host's zygote if there is one, with one line of JSON on its standard input, which then stays open: when
it closes, the place is gone. It has no torch.

It is a process of its own, not a thread of the Dask worker, since distributed ends its workers without notice when
the flow's process dies, and the records that are not durable yet would go with them.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from pathlib import Path
from typing import Any

from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.gang.children import LauncherHandle, Rank, Spare
from openclaw_tasks.gang.flush import Flush
from openclaw_tasks.gang.place import Place
from openclaw_tasks.gang.putter import Outcome, Putter
from openclaw_tasks.gang.records import HeldRecords
from openclaw_tasks.gang.wire import Frame, Wire, WireClosed
from openclaw_tasks.training.base_copy import BaseCopy
from openclaw_tasks.training.control import ControlChannel, ControlClosed
from openclaw_tasks.training.ring import RecordRing

_TICK_SECONDS = 0.02
_BEAT_SECONDS = 0.5
_END_SECONDS = 5.0
_PLACE_GRACE_SECONDS = 0.3  # a dead flow takes its Dask workers along: see which of the two is gone


class Agent:
    """One event loop over the supervisor, the launcher, the ranks and the putter."""

    def __init__(
        self, supervisor: Wire, config: dict[str, Any], token: bytes, launcher: LauncherHandle, place: Place
    ) -> None:
        self._wire = supervisor
        self._place = place
        self._config = config
        self._token = token
        self._job: TrainJob | None = None
        self._lease_seconds = 10.0
        self._selector = selectors.DefaultSelector()
        self._launcher = launcher
        self._ranks: dict[int, Rank] = {}  # by the launcher's number
        self._spares: dict[int, Spare] = {}
        self._records = HeldRecords()
        self._bases: dict[int, tuple[BaseCopy, dict[str, Any]]] = {}
        self._putter = Putter()
        self._own_flush = Flush()
        self._durable_step = 0
        self._told_span: tuple[int, int, int] | None = None
        self._heard_at = time.monotonic()
        self._beat_at = 0.0
        self._place_lost_at: float | None = None
        self._orphaned_at: float | None = None
        self._is_over = False  # the supervisor has ended the gang
        self._running = True

    def run(self) -> None:
        """Serve until told to end, or until orphaned and done."""
        self._selector.register(self._wire, selectors.EVENT_READ, self._on_supervisor)
        self._selector.register(self._launcher.line, selectors.EVENT_READ, self._on_launcher)
        self._selector.register(self._place, selectors.EVENT_READ, self._on_place)
        self._selector.register(self._putter, selectors.EVENT_READ, self._on_putter)
        self._wire.send({"type": "hello", "pid": os.getpid(), "name": self._config["name"]})
        try:
            while self._running:
                for key, _ in self._selector.select(_TICK_SECONDS):
                    key.data()
                self._tick(time.monotonic())
        finally:
            self._wire.close()
            self._end_children()
            self._putter.close()
            self._selector.close()

    @property
    def is_orphan(self) -> bool:
        """Whether the supervisor went away, rather than end the gang."""
        return self._orphaned_at is not None

    def _end_children(self) -> None:
        """Kill what was forked for this gang, and wait until it is gone. Bounded."""
        for number in [*self._ranks, *self._spares]:
            self._launcher.kill(number)
        deadline = time.monotonic() + _END_SECONDS
        while (self._ranks or self._spares) and time.monotonic() < deadline:
            if self._launcher.line.is_readable(0.1):
                self._on_launcher()

    # The supervisor

    def _on_supervisor(self) -> None:
        try:
            for frame in self._wire.receive():
                self._heard_at = time.monotonic()
                self._obey(frame)
        except WireClosed as error:
            self._become_orphan(str(error))

    def _tell(self, frame: Frame) -> None:
        if self._orphaned_at is not None or self._is_over:
            return
        try:
            self._wire.send(frame)
        except WireClosed as error:
            self._become_orphan(str(error))

    def _obey(self, frame: Frame) -> None:
        match frame["type"]:
            case "welcome":
                self._job = TrainJob.parse(frame["job"])
                self._lease_seconds = self._job.fault_tolerance.lease
            case "start-rank":
                self._start_rank(frame)
            case "kill-rank":
                for number in [n for n, rank in self._ranks.items() if rank.member == frame["member"]]:
                    self._launcher.kill(number)
            case "to-rank":
                self._pass_on(frame["member"], frame["message"])
            case "put-group":
                spec = frame["spec"]
                self._putter.put_group(self._targets(), spec, self._records.records(spec["first"], spec["last"]))
            case "put-base":
                self._put_base(frame["spec"])
            case "drop-bases":
                self._drop_bases(frame["through"])
            case "durable":
                self._durable_step = frame["step"]
                self._own_flush.next_group = frame["next"]
                self._free_records()
            case "discard-records":
                self._records.discard()
                self._told_span = None
            case "spare":
                number, spare = self._launcher.start_spare(frame["spec"])
                self._spares[number] = spare
                self._selector.register(spare.line, selectors.EVENT_READ, lambda: self._on_spare(number))
            case "beat":
                pass
            case "end":
                self._is_over = True
                self._running = False
            case other:
                raise AssertionError(f"unknown order {other!r}")

    def _free_records(self) -> None:
        """Give slots back, unless a put (perhaps one that has been replaced since) still reads from them."""
        if not self._putter.is_busy:
            self._records.advance(self._durable_step)

    def _targets(self) -> tuple[list[str], float]:
        assert self._job is not None
        return self._job.store.targets, self._job.store.deadline

    def _start_rank(self, frame: Frame) -> None:
        assert self._job is not None
        spec = {
            "job": self._job.document(),
            "token": self._token.hex(),
            "host": self._wire.local_host,
            "path": frame["path"],
        }
        number, rank = self._launcher.start_rank(frame["member"], spec)
        self._ranks[number] = rank
        self._selector.register(rank.line, selectors.EVENT_READ, lambda: self._on_rank(number))

    def _pass_on(self, member: int, message: dict[str, Any]) -> None:
        for rank in self._ranks.values():
            if rank.member == member:
                if message["type"] == "formation":
                    self._own_flush.rank = message["rank"]
                try:
                    rank.line.send(message)
                except ControlClosed:
                    return  # its end is reported by the launcher

    # Ranks and spare jobs

    def _on_launcher(self) -> None:
        try:
            received = self._launcher.line.receive()
        except ControlClosed:
            # Without a launcher there is no rank and never will be: this agent is of no use.
            self._launcher.is_gone = True
            self._running = False
            return
        if received is None:
            return
        message = received[0]
        match message["type"]:
            case "launcher-ready":
                self._launcher.ready(message["pid"])
                self._tell({"type": "launcher-ready"})
            case "forked":
                if message["number"] in self._ranks:
                    self._ranks[message["number"]].pid = message["pid"]
                    member = self._ranks[message["number"]].member
                    self._tell({"type": "rank-started", "member": member, "pid": message["pid"]})
            case "exited":
                self._child_exited(message["number"], message["status"])

    def _child_exited(self, number: int, status: int) -> None:
        if number in self._spares:
            self._drain(self._spares[number].line, lambda: self._on_spare(number))
            spare = self._spares.pop(number)
            self._forget(spare.line)
            if not spare.answered:
                error = f"ended with status {status} before it answered"
                self._tell({"type": "spare-done", "number": spare.number, "ok": False, "error": error})
            return
        if number not in self._ranks:
            return
        self._drain(self._ranks[number].line, lambda: self._on_rank(number))
        rank = self._ranks.pop(number)
        self._forget(rank.line)
        self._tell(
            {
                "type": "rank-exited",
                "member": rank.member,
                "status": status,
                "struck_at": rank.progress.struck_at,
                "step": rank.progress.step,
                "left_at": rank.left_at_step,
                "failed": rank.failed,
            }
        )
        for ring in rank.rings:
            self._records.retire(ring)
        rank.progress.close()

    def _drain(self, line: ControlChannel, read: Any) -> None:
        """Take what a dead child said last before its end is reported."""
        while line.fileno() >= 0 and line in self._selector.get_map() and line.is_readable():
            if not read():
                return

    def _forget(self, line: ControlChannel) -> None:
        if line in self._selector.get_map():
            self._selector.unregister(line)
        line.close()

    def _on_rank(self, number: int) -> bool:
        """Take one message of a rank; False at its end."""
        rank = self._ranks[number]
        try:
            received = rank.line.receive()
        except ControlClosed:
            self._selector.unregister(rank.line)
            return False
        if received is None:
            return True
        message, fds = received
        match message["type"]:
            case "ready":
                ring = RecordRing.attach(fds[0])
                rank.rings.append(ring)
                self._records.add(ring)
            case "base":
                self._keep_base(message, fds[0])
                return True
            case "left":
                rank.left_at_step = message["step"]
                self._tell_span()
            case "error":
                rank.failed = True
        self._tell({"type": "rank", "member": rank.member, "message": message})
        return True

    def _on_spare(self, number: int) -> bool:
        """Take one message of a spare job; False at its end."""
        spare = self._spares[number]
        try:
            received = spare.line.receive()
        except ControlClosed:
            self._selector.unregister(spare.line)
            return False
        if received is not None:
            spare.answered = True
            self._tell({"type": "spare-done", "number": spare.number, **received[0]})
        return True

    # Storage

    def _keep_base(self, message: dict[str, Any], fd: int) -> None:
        copy = BaseCopy(fd, [(name, length) for name, length in message["parts"]])
        facts = {name: message[name] for name in ("step", "applied", "weights_digest", "state_digest")}
        old = self._bases.pop(message["step"], None)
        if old is not None:
            old[0].close()
        self._bases[message["step"]] = copy, facts
        self._tell({"type": "base-held", "step": message["step"], "bytes": copy.size_bytes})

    def _put_base(self, spec: dict[str, Any]) -> None:
        copy, facts = self._bases[spec["step"]]
        self._putter.put_base(self._targets(), spec, copy, facts)

    def _drop_bases(self, through: int) -> None:
        for step in [step for step in self._bases if step <= through]:
            self._bases.pop(step)[0].close()

    def _on_putter(self) -> None:
        for outcome in self._putter.outcomes():
            self._tell(outcome.frame())
            self._free_records()
            if self._orphaned_at is not None and outcome.kind == "group":
                self._flush_done(outcome)

    def _tell_span(self) -> None:
        span = self._records.span()
        if span is not None and span != self._told_span:
            self._told_span = span
            self._tell({"type": "records", "first": span[0], "last": span[1], "bytes": span[2]})

    # Time and ends

    def _tick(self, now: float) -> None:
        for rank in list(self._ranks.values()):
            reason = rank.stuck_because(now, self._lease_seconds)
            if reason is not None:
                rank.moved_at = now  # tell it once in a while, not at each tick
                self._tell({"type": "rank-hung", "member": rank.member, "reason": reason, **_struck(rank)})
        self._tell_span()
        if self._orphaned_at is not None:
            self._tick_orphan(now)
            return
        if self._wire.wants_write:
            self._flush_wire()
        if now - self._beat_at >= _BEAT_SECONDS:
            self._beat_at = now
            self._tell({"type": "beat"})
        if now - self._heard_at > self._lease_seconds:
            self._become_orphan(f"nothing heard from the supervisor for {self._lease_seconds:g} s")
        if self._place_lost_at is not None and now - self._place_lost_at > _PLACE_GRACE_SECONDS:
            # The worker alone is gone: this place is lost, and its rank with it.
            self._running = False

    def _flush_wire(self) -> None:
        try:
            self._wire.flush()
        except WireClosed as error:
            self._become_orphan(str(error))

    def _on_place(self) -> None:
        if self._place.is_lost():
            self._selector.unregister(self._place)
            self._place_lost_at = time.monotonic()

    def _become_orphan(self, reason: str) -> None:
        """The supervisor is gone: let the ranks end together after their step, then flush what is final."""
        if self._orphaned_at is not None or self._said_goodbye():
            return
        print(f"supervisor lost: {reason}; ranks finish their step, records are flushed", file=sys.stderr)
        self._orphaned_at = time.monotonic()
        self._selector.unregister(self._wire)
        for rank in self._ranks.values():
            self._pass_on(rank.member, {"type": "dismiss"})
        for number in self._spares:
            self._launcher.kill(number)

    def _said_goodbye(self) -> bool:
        """Whether it had ended the gang before it went: a send can fail while its last words are still unread."""
        try:
            for frame in self._wire.receive():
                if frame["type"] in ("durable", "end"):
                    self._obey(frame)
        except WireClosed:
            pass
        return self._is_over

    def _tick_orphan(self, now: float) -> None:
        assert self._orphaned_at is not None
        waited = now - self._orphaned_at
        if self._ranks and waited > self._lease_seconds:
            for number in self._ranks:
                self._launcher.kill(number)
        if not self._ranks and not self._putter.is_busy:
            self._flush()
        if waited > 2 * self._lease_seconds + 10.0:
            self._running = False

    def _flush(self) -> None:
        """Put what is final and not durable as a group of our own, then end."""
        redundancy = self._job.store.redundancy if self._job is not None else 0
        spec = self._own_flush.due(self._records.span(), redundancy)
        if spec is None:
            self._running = False
            return
        self._putter.put_group(self._targets(), spec, self._records.records(spec["first"], spec["last"]))

    def _flush_done(self, outcome: Outcome) -> None:
        self._running = self._own_flush.done(outcome)
        if outcome.group is not None:
            self._records.advance(outcome.group.ref.last)


def _struck(rank: Rank) -> dict[str, Any]:
    return {"struck_at": rank.progress.struck_at, "moved_at": rank.moved_at, "step": rank.progress.step}


def main() -> None:
    """Serve one gang after the other, until the place is gone or a supervisor is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the supervisor's to handle
    launcher = LauncherHandle(sys.argv[1] if len(sys.argv) > 1 else None)
    place = Place()
    status = 0
    try:
        while status == 0 and (config := place.next_config()) is not None:
            token = bytes.fromhex(Path(config["token_file"]).read_text("ascii").strip())
            host, port = config["supervisor"]
            agent = Agent(Wire.dial((host, port), token, timeout_seconds=10.0), config, token, launcher, place)
            agent.run()
            status = int(agent.is_orphan or launcher.is_gone)
    finally:
        launcher.close()
    sys.exit(status)


if __name__ == "__main__":
    main()
