"""Our own deadline on every storage operation: a target that hangs costs seconds, never the run.

A hanging system call cannot be ended from outside, so the operation runs in a daemon thread that is left
behind when its time is up: it ends when the target answers or the process does. It may then still take
effect, which create-only names make harmless; so give it immutable bytes, not a buffer that is used again. A
target that holds many such threads is not asked again until one returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from openclaw_tasks.errors import StoreTimeoutError
from openclaw_tasks.storage.store import SWEEP_AGE_SECONDS, Buffer, Store

Result = TypeVar("Result")

MAX_HANGING = 8


class Call(Generic[Result]):
    """One call in a daemon thread of its own, begun at once."""

    def __init__(self, function: Callable[[], Result], name: str) -> None:
        self._function = function
        self._done = threading.Event()
        self._result: Result
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Whether it is over; waits for that at most `seconds`."""
        return self._done.wait(seconds)

    def result(self) -> Result:
        """What the call returned or raised. Only after it is over."""
        assert self._done.is_set()
        if self._error is not None:
            raise self._error
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001 - outermost of the thread; result() raises it
            self._error = error
        finally:
            self._done.set()


class DeadlineStore:
    """`store` with a limit on the time of each operation: StoreTimeoutError after it."""

    def __init__(self, store: Store, seconds: float) -> None:
        self._store = store
        self._seconds = seconds
        self._hanging: set[Call[Any]] = set()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self._store.url

    def create(self, key: str, data: Buffer) -> None:
        self._within(f"creating {key}", lambda: self._store.create(key, data))

    def replace(self, key: str, data: Buffer) -> None:
        self._within(f"replacing {key}", lambda: self._store.replace(key, data))

    def read(self, key: str) -> bytes:
        return self._within(f"reading {key}", lambda: self._store.read(key))

    def list(self, prefix: str) -> list[str]:
        return self._within(f"listing {prefix}", lambda: self._store.list(prefix))

    def delete(self, key: str) -> None:
        self._within(f"deleting {key}", lambda: self._store.delete(key))

    def sweep_temporaries(self, older_than_seconds: float = SWEEP_AGE_SECONDS) -> int:
        return self._within("sweeping", lambda: self._store.sweep_temporaries(older_than_seconds))

    def _within(self, what: str, operation: Callable[[], Result]) -> Result:
        with self._lock:
            self._hanging = {call for call in self._hanging if not call.wait(0)}
            if len(self._hanging) >= MAX_HANGING:
                raise StoreTimeoutError(f"{self.url}: {what}: not tried, {MAX_HANGING} operations hang there")
        call = Call(operation, f"storage {what}")
        if not call.wait(self._seconds):
            with self._lock:
                self._hanging.add(call)
            raise StoreTimeoutError(
                f"{self.url}: {what}: no answer within {self._seconds:g} s (store.deadline); check the target"
            )
        return call.result()
