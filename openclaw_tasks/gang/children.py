"""An agent's view of its launcher and of the processes that the launcher forked for it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from openclaw_tasks.gang.zygote import Zygote, dial
from openclaw_tasks.training.control import ControlChannel, ControlClosed
from openclaw_tasks.training.progress import Phase, ProgressPage
from openclaw_tasks.training.ring import RecordRing

FROZEN_SECONDS = 2.0  # a stopped process is given up within this, or three of its own step times
_TELLING_SECONDS = 0.1  # of that: until the next look has come, and the supervisor has heard of it
STARTING_SECONDS = 300.0  # imports, the user's constructor, restoring a state
_END_SECONDS = 5.0


@dataclass(slots=True)
class Rank:
    """One rank process of this agent."""

    member: int
    line: ControlChannel
    progress: ProgressPage
    pid: int | None = None
    rings: list[RecordRing] = field(default_factory=list)
    beats: int = -1
    moved_at: float = field(default_factory=time.monotonic)
    left_at_step: int | None = None
    failed: bool = False

    def stuck_because(self, now: float, lease_seconds: float) -> str | None:
        """Why this rank counts as hung, or None: judged by its own progress and its own step times.

        One that runs or sleeps, but does not move, is given up after the lease or ten of its step times.
        """
        beats = self.progress.beats
        if beats != self.beats:
            self.beats, self.moved_at = beats, now
            return None
        still = now - self.moved_at
        if still < FROZEN_SECONDS - _TELLING_SECONDS or self.pid is None:
            return None
        step_seconds = self.progress.step_seconds or 0.0
        if process_state(self.pid) in "Tt":
            if still >= max(FROZEN_SECONDS, 3 * step_seconds) - _TELLING_SECONDS:
                return f"frozen: its process is stopped and has not moved for {still:.1f} s"
            return None
        patience = max(FROZEN_SECONDS, lease_seconds, 10 * step_seconds)
        if self.progress.phase in (Phase.STARTING, Phase.JOINING) or not step_seconds:
            patience = STARTING_SECONDS
        if still >= patience:
            return f"hung: no progress for {still:.1f} s while {self.progress.phase.name.lower()}"
        return None


@dataclass(slots=True)
class Spare:
    """A job beside training: verification, evaluation, compaction."""

    number: int
    line: ControlChannel
    answered: bool = False


def process_state(pid: int) -> str:
    """The one letter of /proc/PID/stat; empty when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 (read at each tick)
            return chr(file.read().rpartition(b") ")[2][0])
    except (FileNotFoundError, ProcessLookupError):
        return ""


class LauncherHandle:
    """Has a launcher forked and asks it to fork. Answers come over `line` to the agent's loop."""

    def __init__(self, zygote_address: str | None) -> None:
        """Of the host's zygote, if there is one; else, or if it has died, of one of our own."""
        self._own_zygote: Zygote | None = None
        self.line = self._dial(zygote_address)
        self.is_gone = False  # its line has ended
        self._pidfd: int | None = None  # known when it is ready
        self._next_number = 0

    def _dial(self, address: str | None) -> ControlChannel:
        if address is not None:
            try:
                return dial(address)
            except ControlClosed as error:
                print(f"zygote {address}: {error}; starting another", file=sys.stderr)
        self._own_zygote = Zygote(errors=sys.stderr.fileno())
        return dial(self._own_zygote.address)

    def ready(self, pid: int) -> None:
        """It has said so."""
        with contextlib.suppress(ProcessLookupError):  # and has died since: its line says that too
            self._pidfd = os.pidfd_open(pid)

    def start_rank(self, member: int, spec: dict[str, Any]) -> tuple[int, Rank]:
        """Fork a rank; returns the launcher's number for it."""
        mine, theirs = ControlChannel.pair()
        progress = ProgressPage.create()
        number = self._fork("rank", spec, [theirs.fileno(), progress.fd])
        theirs.close()
        return number, Rank(member, mine, progress)

    def start_spare(self, spec: dict[str, Any]) -> tuple[int, Spare]:
        """Fork a spare job; returns the launcher's number for it."""
        mine, theirs = ControlChannel.pair()
        number = self._fork("spare", spec, [theirs.fileno()])
        theirs.close()
        return number, Spare(spec["number"], mine)

    def kill(self, number: int) -> None:
        with contextlib.suppress(ControlClosed):
            self.line.send({"type": "kill", "number": number})

    def close(self) -> None:
        """End the launcher and all it forked; bounded. One that is not ready yet has forked nothing, and will not."""
        self.line.close()
        if self._pidfd is not None:
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            if not poller.poll(_END_SECONDS * 1000):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.close(self._pidfd)
            self._pidfd = None
        if self._own_zygote is not None:
            self._own_zygote.close()

    def _fork(self, kind: str, spec: dict[str, Any], fds: list[int]) -> int:
        number = self._next_number
        self._next_number += 1
        self.line.send({"type": "fork", "kind": kind, "number": number, "spec": spec}, fds)
        return number
