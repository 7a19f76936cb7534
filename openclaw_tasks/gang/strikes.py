"""The faults that a command asked for, until each has struck once."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from openclaw_tasks.config.faults import Fault
from openclaw_tasks.storage.file_store import SCHEME

T = TypeVar("T")

_DELETE_TRIES = 5
_ON_ITSELF = ("kill-rank", "stop-rank")


class Strikes:
    """Ranks strike themselves; agents, targets and the flow are struck from here when a rank is at the point."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._pending = list(faults)
        self._members: tuple[int, ...] = ()
        self._agents: tuple[str, ...] = ()

    @property
    def pending(self) -> list[Fault]:
        """Those that have not struck."""
        return list(self._pending)

    def number(self, members: Sequence[int], agents: Sequence[str]) -> None:
        """Ranks as they are numbered at the start of a gang."""
        self._members, self._agents = tuple(members), tuple(agents)

    def of_member(self, member: int) -> Mapping[str, str]:
        """What this rank is to do to itself: {step: kind}."""
        return {
            str(fault.step): fault.kind
            for fault in self._pending
            if fault.kind in _ON_ITSELF and self._target(self._members, fault) == member
        }

    def holds(self) -> list[int]:
        """Steps in which every rank waits until something has been struck from here."""
        return sorted({fault.step for fault in self._pending if fault.kind not in _ON_ITSELF})

    def struck_itself(self, member: int, step: int | None = None) -> Fault | None:
        """A rank died or froze by its own hand in `step`: which fault that was; without a step the earliest of its."""
        meant = [
            fault
            for fault in self._pending
            if fault.kind in _ON_ITSELF and self._target(self._members, fault) == member
        ]
        if not meant:
            return None
        struck = min(meant, key=lambda fault: (fault.step != step, fault.step))
        self._pending.remove(struck)
        return struck

    def strike(
        self,
        step: int,
        pids: Mapping[str, int],
        targets: Sequence[str],
        before: Callable[[Fault, float], None],
    ) -> None:
        """Strike what is due in `step`; `before` is called with the time just before each."""
        for fault in [fault for fault in self._pending if fault.step == step and fault.kind not in _ON_ITSELF]:
            self._pending.remove(fault)
            before(fault, time.monotonic())
            if fault.kind == "kill-agent":
                agent = self._target(self._agents, fault)
                if agent is not None and agent in pids:
                    with contextlib.suppress(ProcessLookupError):  # it has died by itself just before
                        os.kill(pids[agent], signal.SIGKILL)
            elif fault.kind == "delete-target":
                assert fault.target is not None
                _delete(_folder(targets[fault.target]))
            else:
                os.kill(os.getpid(), signal.SIGKILL)

    def agent_of(self, fault: Fault) -> str | None:
        """The agent that a kill-agent fault means."""
        return self._target(self._agents, fault)

    @staticmethod
    def _target(numbered: Sequence[T], fault: Fault) -> T | None:
        return numbered[fault.target] if fault.target is not None and fault.target < len(numbered) else None


def _folder(url: str) -> Path:
    return Path(url.removeprefix(SCHEME).removeprefix("localhost"))  # as FileStore reads it


def _delete(folder: Path) -> None:
    """At once: a writer must not find half of it and make folders anew below."""
    doomed = folder.with_name(f".{folder.name}.deleted-{os.getpid()}-{time.monotonic_ns()}")
    try:
        folder.rename(doomed)
    except FileNotFoundError:
        return  # it is gone already
    for _ in range(_DELETE_TRIES - 1):
        # Who was just writing below it may add a file to a folder that is being deleted.
        shutil.rmtree(doomed, ignore_errors=True)
        if not doomed.exists():
            return
    shutil.rmtree(doomed)
