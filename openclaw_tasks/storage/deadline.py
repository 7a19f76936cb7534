"""Our own deadline on every storage operation: a target that hangs costs seconds, never the run."""

from __future__ import annotations

from openclaw_tasks.storage.store import SWEEP_AGE_SECONDS, Buffer, Store


class DeadlineStore:
    """`store` with a limit on the time of each operation: StoreTimeoutError after it."""

    def __init__(self, store: Store, seconds: float) -> None:
        raise NotImplementedError

    @property
    def url(self) -> str: ...

    def create(self, key: str, data: Buffer) -> None: ...

    def replace(self, key: str, data: Buffer) -> None: ...

    def read(self, key: str) -> bytes: ...

    def list(self, prefix: str) -> list[str]: ...

    def delete(self, key: str) -> None: ...

    def sweep_temporaries(self, older_than_seconds: float = SWEEP_AGE_SECONDS) -> int: ...
