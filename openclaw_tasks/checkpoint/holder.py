"""Holding a run: the heartbeat in `holder.json`, and waiting for another holder's lease to run out.

A counter that moves shows a living holder; nobody's wall clock is compared with anybody else's
(rubrikinc/kronos#10). Taking over wrongly would cost time, never data: the claim fences the old holder.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from openclaw_tasks.checkpoint import driver, paths
from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.commit import highest_claim
from openclaw_tasks.checkpoint.documents import Holder, Process
from openclaw_tasks.checkpoint.operations import Replace, Steps, list_everywhere, require
from openclaw_tasks.checkpoint.run_documents import read_holders
from openclaw_tasks.config.processes import boot_id, start_ticks
from openclaw_tasks.errors import RunLiveError, StoreError, StoreTimeoutError

if TYPE_CHECKING:
    from openclaw_tasks.storage.store import Store
    from openclaw_tasks.storage.targets import TargetSet

BEAT_SECONDS = 2.0
_POLL_SECONDS = 0.25


def describe_process(pid: int) -> Process | None:
    """The process `pid` of this host; None when there is none."""
    started = start_ticks(pid)
    return None if started is None else Process(host=socket.gethostname(), boot=boot_id(), pid=pid, started=started)


def this_process() -> Process:
    process = describe_process(os.getpid())
    assert process is not None
    return process


def is_known_dead(process: Process, here: Process) -> bool:
    """True when `process` ran on this host and does not any more; False when it runs, or nobody can tell here."""
    if process.host != here.host:
        return False
    if process.boot != here.boot:
        return True
    return describe_process(process.pid) != process


def await_lease(
    targets: TargetSet,
    run: str,
    *,
    lease_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Return once nobody alive holds the run, as far as can be told; at once where that is certain.

    Raises RunLiveError as soon as the holder's counter moves; NotDurableError when too few targets answer.
    A holder that died on this host is waited for only while its agents still put what they hold.
    """
    here = this_process()
    begun = clock()
    first: tuple[int, int] | None = None
    is_first_look = True
    while True:
        holders, claimed = driver.run(_look(run, len(targets.urls)), targets)
        newest = max(holders, key=lambda holder: (holder.epoch, holder.counter), default=None)
        mark = (newest.epoch, newest.counter) if newest is not None else None
        if is_first_look:
            first, is_first_look = mark, False
        if newest is None:
            if not claimed:
                return
        elif newest.released and newest.epoch >= claimed:
            return
        elif mark != first:
            raise RunLiveError(run, f"{newest.process.host} pid {newest.process.pid}")
        elif newest.epoch >= claimed and all(is_known_dead(one, here) for one in (newest.process, *newest.agents)):
            return
        if clock() - begun >= lease_seconds:
            return
        pause(_POLL_SECONDS)


def _look(run: str, num_targets: int) -> Steps[tuple[list[Holder], int]]:
    """The holder documents, and the highest epoch claimed (a claim may be so new that no holder names it)."""
    code = Code(num_targets, 0)
    listing = yield from list_everywhere(code, paths.claim_prefix(run))
    require(f"run {run!r}: claims", listing.keys, code.read_quorum, listing.problems)
    holders = yield from read_holders(run, num_targets)
    return holders, highest_claim(run, listing.keys)


class Fence:
    """Whether the right to write is lost; `on_lost` is called once, by whoever hears of it first."""

    def __init__(self, on_lost: Callable[[], None] | None) -> None:
        self.is_lost = threading.Event()
        self._on_lost = on_lost
        self._lock = threading.Lock()

    def lose(self) -> None:
        with self._lock:
            is_news = not self.is_lost.is_set()
            self.is_lost.set()
        if is_news and self._on_lost is not None:
            self._on_lost()


class Heartbeat:
    """Replaces `holder.json` every 2 s, one thread a target, so that a slow one holds up no other.

    on_fenced: called when a newer epoch is seen on a target. `on_return` is called when a target that failed
    answers again.
    """

    def __init__(
        self,
        targets: TargetSet,
        run: str,
        epoch: int,
        writer: str,
        *,
        on_fenced: Callable[[], None],
        interval_seconds: float = BEAT_SECONDS,
    ) -> None:
        self._targets = targets
        self._run = run
        self._epoch = epoch
        self._writer = writer
        self._on_fenced = on_fenced
        self.on_return: Callable[[], None] | None = None
        self.failing: set[str] = set()
        """Places of the targets that failed the last beat."""
        self._interval_seconds = interval_seconds
        self._process = this_process()
        self._lock = threading.Lock()
        self._counter = 0
        self._durable_step = 0
        self._agents: tuple[Process, ...] = ()
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._beat, args=(store,), name=f"heartbeat-{index}", daemon=True)
            for index, store in targets.present()
        ]
        for thread in self._threads:
            thread.start()

    def tell(self, *, durable_step: int | None = None, agents: Sequence[Mapping[str, Any]] | None = None) -> None:
        """What the next beats say. Agents that have ended already are left out."""
        with self._lock:
            if durable_step is not None:
                self._durable_step = durable_step
            if agents is not None:
                living = (describe_process(int(agent["pid"])) for agent in agents)
                self._agents = tuple(process for process in living if process is not None)

    def stop(self, *, release: bool) -> None:
        """End the threads; with `release`, say on every target that answers that the run is free."""
        self._ending.set()
        for thread in self._threads:
            thread.join()
        if release:
            holder = self._next_holder(released=True)
            operations = [Replace(index, holder.key, holder.to_bytes()) for index in range(len(self._targets.urls))]
            driver.run(_all(operations), self._targets, may_skip=len(operations))

    def _next_holder(self, *, released: bool = False) -> Holder:
        with self._lock:
            self._counter += 1
            return Holder(
                run=self._run,
                epoch=self._epoch,
                writer=self._writer,
                counter=self._counter,
                released=released,
                durable_step=self._durable_step,
                agents=self._agents,
                process=self._process,
            )

    def _beat(self, store: Store) -> None:
        while True:
            try:
                claims = store.list(paths.claim_prefix(self._run))
                if highest_claim(self._run, {0: claims}) > self._epoch:
                    self._on_fenced()
                    return
                holder = self._next_holder()
                store.replace(holder.key, holder.to_bytes())
            except StoreError as error:
                if isinstance(error, StoreTimeoutError):
                    driver.note_timeout(store)
                self.failing.add(store.url)
            else:
                if store.url in self.failing:
                    self.failing.discard(store.url)
                    if self.on_return is not None:
                        self.on_return()
            if self._ending.wait(self._interval_seconds):
                return


def _all(operations: Sequence[Replace]) -> Steps[None]:
    yield operations
