"""A run's targets: opened together, each known by the identity in its `target.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from openclaw_tasks.storage.store import Store, Target

SCHEMES: dict[str, Callable[[str], Target]] = {}


@dataclass(frozen=True, slots=True)
class TargetSet:
    """The targets in the job's order. Stripe i belongs on target i."""

    urls: tuple[str, ...]
    stores: tuple[Store | None, ...]
    """None: absent; `problems` says why. Every operation of a store has the deadline."""
    uuids: tuple[str | None, ...]
    problems: Mapping[int, str]
    """By index: why a target counts as absent, in one line."""
    blank: frozenset[int]
    """Of the absent, those that definitely hold nothing of ours: never a target, or emptied. The others could
    not be asked, or are damaged. All blank and the run unknown to the index: this is a first start."""

    def present(self) -> list[tuple[int, Store]]:
        """Index and store of the targets that can be used."""
        return [(index, store) for index, store in enumerate(self.stores) if store is not None]

    def sweep_temporaries(self) -> int:
        """Remove dead writers' leftovers from all present targets; the number removed."""
        raise NotImplementedError


def open_store(url: str) -> Target:
    """The store of a target's URL, not yet touched; UsageError for a scheme we do not have."""
    raise NotImplementedError


def open_targets(
    urls: Sequence[str],
    *,
    deadline_seconds: float,
    create: bool = False,
    probe: bool = False,
    known_uuids: Sequence[str | None] | None = None,
    schemes: Mapping[str, Callable[[str], Target]] = SCHEMES,
) -> TargetSet:
    """Open all targets in parallel.

    `create`: a run's first start. Every target must answer, be writable (probed), and get or have its
    identity; else TargetUnusableError, and what was made just now is removed again. Otherwise a target that
    is missing, does not answer, is damaged, or (with `probe`) cannot be written safely is absent, and
    `problems` says why; so is one whose uuid is not the one in `known_uuids`.

    TargetUnusableError also when two URLs are one place, or when the targets' order is not the one they were
    created in. UsageError for a URL that cannot be.
    """
    raise NotImplementedError
