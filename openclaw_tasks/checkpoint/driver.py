"""Runs the protocol's generators on real targets: one thread a target, a deadline on each operation.

A target that let an operation time out is not asked again in the same run of a generator, so it holds that
run up for one deadline, not for one per operation. Runs that can spare it (`may_skip`) leave it out for a
while afterwards, and ask it again when the while is over or when too few others are left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from openclaw_tasks.checkpoint.operations import (
    Answer,
    Create,
    Delete,
    List,
    Operation,
    Pause,
    Read,
    Replace,
    Steps,
)
from openclaw_tasks.errors import StoreError, StoreTimeoutError, TargetLostError

if TYPE_CHECKING:
    from openclaw_tasks.storage.store import Store
    from openclaw_tasks.storage.targets import TargetSet

T = TypeVar("T")
FIRST_REST_SECONDS = 30.0
LONGEST_REST_SECONDS = 300.0


class _Suspects:
    """Targets that timed out lately, in this process and by place: until when each is left alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rests: dict[str, tuple[float, float]] = {}

    def timed_out(self, url: str) -> None:
        with self._lock:
            until, last = self._rests.get(url, (0.0, 0.0))
            now = time.monotonic()
            if until <= now:  # one rest for all that time out at once
                rest = min(LONGEST_REST_SECONDS, last * 2 or FIRST_REST_SECONDS)
                self._rests[url] = (now + rest, rest)

    def answered(self, url: str) -> None:
        with self._lock:
            self._rests.pop(url, None)

    def resting(self, url: str) -> bool:
        with self._lock:
            return self._rests.get(url, (0.0, 0.0))[0] > time.monotonic()


_suspects = _Suspects()


def note_timeout(store: Store) -> None:
    """Leave the store's target alone for a while, in runs that can spare it."""
    _suspects.timed_out(store.url)


def run(
    steps: Steps[T],
    targets: TargetSet,
    *,
    may_skip: int = 0,
    pause: Callable[[float], object] = time.sleep,
) -> T:
    """Drive `steps` to its end and return its outcome; what it raises passes through.

    may_skip: how many targets that timed out lately may be left out altogether.
    pause: called with the seconds of a Pause.
    """
    gone = _absent(targets)
    resting = [index for index, store in targets.present() if _suspects.resting(store.url)]
    if len(resting) + len(gone) <= may_skip:
        for index in resting:
            gone[index] = StoreTimeoutError(f"{targets.urls[index]}: timed out a moment ago, left alone for now")
    try:
        batch = next(steps)
        while True:
            if len(batch) == 1 and isinstance(batch[0], Pause):
                pause(batch[0].seconds)
                answers: Sequence[Answer] = [None]
            else:
                answers = _run_batch(batch, targets, gone)
            batch = steps.send(answers)
    except StopIteration as end:
        outcome: T = end.value
        return outcome
    finally:
        steps.close()


def _absent(targets: TargetSet) -> dict[int, StoreError]:
    gone: dict[int, StoreError] = {}
    for index, store in enumerate(targets.stores):
        if store is None:
            problem = targets.problems.get(index, f"{targets.urls[index]}: absent")
            gone[index] = TargetLostError(problem) if index in targets.blank else StoreError(problem)
    return gone


def _run_batch(batch: Sequence[Operation], targets: TargetSet, gone: dict[int, StoreError]) -> list[Answer]:
    """One thread for each target in the batch; the last target's work is done in this one."""
    if not batch:
        return []
    answers: list[Answer] = [None] * len(batch)
    places: dict[int, list[int]] = {}
    for place, operation in enumerate(batch):
        assert not isinstance(operation, Pause), "a Pause stands alone in its batch"
        places.setdefault(operation.target, []).append(place)
    threads: list[threading.Thread] = []
    failures: list[BaseException] = []

    def serve(target: int) -> None:
        try:
            _serve_target(batch, places[target], target, targets, gone, answers)
        except BaseException as error:  # noqa: BLE001  a thread's outermost frame: handed to the caller below
            failures.append(error)

    *others, last = [*places]
    for target in others:
        if target in gone:
            serve(target)
            continue
        thread = threading.Thread(target=serve, args=(target,), name=f"target-{target}", daemon=True)
        threads.append(thread)
        thread.start()
    serve(last)
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return answers


def _serve_target(
    batch: Sequence[Operation],
    places: Sequence[int],
    target: int,
    targets: TargetSet,
    gone: dict[int, StoreError],
    answers: list[Answer],
) -> None:
    """Fill in the answers of one target's operations, in order. Only this thread touches `gone[target]`."""
    store = targets.stores[target]
    for place in places:
        if target in gone or store is None:
            answers[place] = gone[target]
            continue
        try:
            answers[place] = _perform(store, batch[place])
        except StoreTimeoutError as error:
            answers[place] = gone[target] = error
            _suspects.timed_out(store.url)
            continue
        except StoreError as error:
            answers[place] = error
        _suspects.answered(store.url)


def _perform(store: Store, operation: Operation) -> Answer:
    match operation:
        case Create(_, key, data):
            store.create(key, data)
        case Replace(_, key, data):
            store.replace(key, data)
        case Read(_, key):
            return store.read(key)
        case List(_, prefix):
            return store.list(prefix)
        case Delete(_, key):
            store.delete(key)
    return None
