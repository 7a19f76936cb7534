"""The seam between the commit protocol and a storage place: a handful of operations on whole buffers.

A key is a relative name of parts joined by `/` (`lm/claim/3`). An object appears under its key whole or
not at all, and stays as it was created; only `replace` changes one. Nothing is streamed: an error in the
middle of a streamed write would still publish the short object (piskvorky/smart_open#684).

Errors, for every operation:
- NotFoundError: a definite answer that the key does not exist, while the target itself does;
- AlreadyExistsError: `create` of a key that exists (by anybody: read it back and compare the writer);
- TargetLostError: the target's identity is gone; nothing was created;
- StoreTimeoutError: no answer in time (see deadline.py); the operation may still take effect later;
- StoreError: anything else, with what is needed to mend it.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

TARGET_KEY = "target.json"  # a target's identity, written once
TEMPORARY_PREFIX = ".tmp-"
SWEEP_AGE_SECONDS = 3600.0


class Store(Protocol):
    """One storage target. Every method may be called from several threads at once."""

    @property
    def url(self) -> str:
        """Where it is, in the form that messages and the job file use."""

    def create(self, key: str, data: Buffer) -> None:
        """Publish `data` durably under a key that must not exist; of several creators exactly one wins."""

    def replace(self, key: str, data: Buffer) -> None:
        """Publish `data` durably under `key`, in place of what may be there; readers see one or the other."""

    def read(self, key: str) -> bytes:
        """The whole object."""

    def list(self, prefix: str) -> list[str]:
        """All keys below the folder `prefix` ("" or ending in "/"), at any depth, in the order of their text.

        Fresh, never from a cache. Half-written objects are not shown. An absent folder is an empty list.
        The order is for reproducibility only: numbers in names are to be compared as numbers (see
        checkpoint/paths.py).
        """

    def delete(self, key: str) -> None:
        """Remove the object; one that does not exist is no error, so that a repeated delete is none."""

    def sweep_temporaries(self, older_than_seconds: float = SWEEP_AGE_SECONDS) -> int:
        """Remove what dead writers left half-written and no list shows; the number removed.

        Younger ones may belong to a living writer elsewhere. Age is taken on the target's own clock.
        """


class Target(Store, Protocol):
    """A Store with what opening it as a target needs besides (see targets.py)."""

    def make_root(self) -> None:
        """Create the place itself if it does not exist, and remember what had to be made."""

    def unmake_root(self) -> int:
        """Remove again what `make_root` made, as far as it is empty; how many folders were removed."""

    def bind(self, key: str) -> None:
        """From now on the object `key` is the target's identity: without that very one the target is lost."""


def check_key(key: str) -> str:
    """`key` itself, if it is a proper key; ValueError if it could leave the target or hide in it."""
    for part in key.split("/"):
        if part in ("", ".", "..") or part.startswith(TEMPORARY_PREFIX) or "\0" in part:
            raise ValueError(f"storage key {key!r} is not a relative name: part {part!r}")
    return key


def check_prefix(prefix: str) -> str:
    """`prefix` itself, if it is "" or a proper folder name ending in "/"; else ValueError."""
    if prefix:
        if not prefix.endswith("/"):
            raise ValueError(f"storage prefix {prefix!r} must end in '/'")
        check_key(prefix[:-1])
    return prefix
