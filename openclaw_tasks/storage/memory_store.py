"""A target in this process' memory: for tests and for simulating the commit protocol. Nothing is durable."""

from __future__ import annotations

import threading

from openclaw_tasks.errors import AlreadyExistsError, NotFoundError, TargetLostError
from openclaw_tasks.storage.store import SWEEP_AGE_SECONDS, Buffer, check_key, check_prefix


class MemoryStore:
    """A real Store over a dict, with the same answers as FileStore."""

    def __init__(self, url: str = "memory://") -> None:
        self._url = url
        self._objects: dict[str, bytes] = {}
        self._bound: tuple[str, bytes] | None = None
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self._url

    def create(self, key: str, data: Buffer) -> None:
        check_key(key)
        content = bytes(data)
        with self._lock:
            self._check_identity()
            if key in self._objects:
                raise AlreadyExistsError(f"{self._url}: {key} already exists")
            self._objects[key] = content

    def replace(self, key: str, data: Buffer) -> None:
        check_key(key)
        content = bytes(data)
        with self._lock:
            self._check_identity()
            self._objects[key] = content

    def read(self, key: str) -> bytes:
        check_key(key)
        with self._lock:
            self._check_identity()
            if key not in self._objects:
                raise NotFoundError(f"{self._url}: {key} does not exist")
            return self._objects[key]

    def list(self, prefix: str) -> list[str]:
        check_prefix(prefix)
        with self._lock:
            self._check_identity()
            return sorted(key for key in self._objects if key.startswith(prefix))

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            self._check_identity()
            self._objects.pop(key, None)

    def sweep_temporaries(self, older_than_seconds: float = SWEEP_AGE_SECONDS) -> int:
        return 0

    def make_root(self) -> None:
        """A dict is always there."""

    def unmake_root(self) -> int:
        return 0

    def bind(self, key: str) -> None:
        with self._lock:
            if key not in self._objects:
                raise TargetLostError(f"{self._url}: {key} is gone")
            self._bound = (key, self._objects[key])

    def contents(self) -> dict[str, bytes]:
        """Everything that lies there, also when the target counts as lost."""
        with self._lock:
            return dict(self._objects)

    def wipe(self) -> None:
        """Lose everything, identity included, as a replaced disk would."""
        with self._lock:
            self._objects.clear()

    def _check_identity(self) -> None:
        if self._bound is not None and self._objects.get(self._bound[0]) != self._bound[1]:
            raise TargetLostError(f"{self._url}: {self._bound[0]} is gone or another one: the target is lost")
