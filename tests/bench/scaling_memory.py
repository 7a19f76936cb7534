"""Memory of the ranks and agents of a real gang: the most that each held, from /proc, looked at again and again.

A process's own memory (RssAnon) and what it shares (RssShmem): of a rank its record ring; of its agent the same pages,
and the copy of the state that a base is made of.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.gang.placing import WarmAgents
from openclaw_tasks.gang.plain_run import train_plainly
from openclaw_tasks.observe.events import Event, EventLog

_LOOK_SECONDS = 0.005  # the shortest peaks, of some milliseconds a million parameters, are seen for large models


class Memory(NamedTuple):
    """Bytes."""

    own: int
    shared: int


def peaks(job: TrainJob, agents: WarmAgents) -> dict[str, Memory]:
    """The most that any rank and any agent of a run held: {"rank": ..., "agent": ...}.

    Nothing is proven: a proof is no rank's and no agent's memory, but that of a process of its own.
    """
    placement = agents.placement(job.cluster.workers)
    with MemoryWatch() as watch, _listening(job, watch) as events:
        for pid in placement.pids():
            watch.add("agent", pid)
        train_plainly(job, placement, prove=False, events=events)
    return watch.peaks()


@contextmanager
def _listening(job: TrainJob, watch: MemoryWatch) -> Iterator[EventLog]:
    def note(event: Event) -> None:
        watch.add("rank", event["pid"])

    events = EventLog(job.run)
    events.listen(note, name="memory", kinds=["rank-started"])
    yield events
    events.close()


class MemoryWatch:
    """Looks at the processes that were added, while its body runs."""

    def __init__(self) -> None:
        self._pids: dict[int, str] = {}
        self._peaks: defaultdict[str, Memory] = defaultdict(lambda: Memory(0, 0))
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-watch")

    def add(self, kind: str, pid: int) -> None:
        self._pids[pid] = kind

    def peaks(self) -> dict[str, Memory]:
        """By kind, the most that one process held, own and shared, each at its own time."""
        return dict(self._peaks)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ending.wait(_LOOK_SECONDS):
            for pid, kind in list(self._pids.items()):
                now, most = memory_of(pid), self._peaks[kind]
                self._peaks[kind] = Memory(max(now.own, most.own), max(now.shared, most.shared))


def memory_of(pid: int) -> Memory:
    """What a process holds now; nothing if it has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return Memory(0, 0)
    fields = dict(line.split(":", 1) for line in text.splitlines())
    if "RssAnon" not in fields:  # it is being buried
        return Memory(0, 0)
    return Memory(*(1024 * int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem")))
