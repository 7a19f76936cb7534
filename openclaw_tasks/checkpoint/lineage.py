"""What a run's history consists of: groups of records and bases, as values.

Pure: no I/O. The JSON forms travel between supervisor and agents and stand in `start/` documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self


class JsonValue:
    """A flat value whose JSON form is its fields."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{f.name: data[f.name] for f in fields(cls)})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class GroupSpec(JsonValue):
    """A group that somebody is asked to put: steps `first`..`last`, the `attempt`-th try.

    `previous` is the payload digest of the group before it in the lineage ("" for the first); `redundancy` is m.
    """

    run: str
    epoch: int
    writer: str
    seq: int
    attempt: int
    first: int
    last: int
    previous: str
    codec: str
    redundancy: int


@dataclass(frozen=True, slots=True)
class GroupRef(JsonValue):
    """A group that is in storage. `digest` is of its payload, `size` that payload's bytes."""

    epoch: int
    writer: str
    seq: int
    attempt: int
    first: int
    last: int
    previous: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class BaseSpec(JsonValue):
    """A base that somebody is asked to put: the whole state after step `step`, the `attempt`-th try."""

    run: str
    epoch: int
    writer: str
    step: int
    attempt: int
    redundancy: int


@dataclass(frozen=True, slots=True)
class BaseRef(JsonValue):
    """A base whose manifest is in storage. `verified`: replay from the base before it gave the same state."""

    epoch: int
    writer: str
    step: int
    verified: bool = False


@dataclass(frozen=True, slots=True)
class Lineage:
    """One history: contiguous groups in order, the bases along it, the steps to skip.

    `floor`: bases before this step and records up to it may be gone (retention). `end_step`: the last
    step whose record is part of the history (a rollback may cut inside a group).
    """

    epoch: int
    writer: str
    groups: tuple[GroupRef, ...] = ()
    bases: tuple[BaseRef, ...] = ()
    skip: tuple[int, ...] = ()
    floor: int = 0
    end_step: int = 0
    identity: Mapping[str, Any] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)
