"""The run's JSON documents: claim, start, holder, base manifest, pin.

Each is an immutable value that knows the key it belongs under. Its bytes are canonical JSON with their own
digest (storage/digested_json.py); reading checks the digest, the exact set and types of fields, and that the
document is the one its key names. Floats that must come back bit for bit travel as `float.hex()` text.
FORMAT.md lists every field.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from openclaw_tasks.checkpoint import paths
from openclaw_tasks.checkpoint.lineage import BaseRef, GroupRef
from openclaw_tasks.checkpoint.paths import BaseMark, BaseName, GroupName, ObjectName, StartName
from openclaw_tasks.errors import DamagedError, UsageError
from openclaw_tasks.storage.digested_json import canonical_json, read_digested, write_digested
from openclaw_tasks.storage.store import Buffer

FORMAT = 1
Count = Field(ge=0)
Ordinal = Field(ge=1)
Word = Field(pattern=paths.WORD_PATTERN)


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Process(_Strict):
    """Who wrote a document, for people and for "is that pid on this host dead?"."""

    host: str
    boot: str
    """The host's boot id: a pid means nothing after a reboot, or on another machine of the same name."""
    pid: int = Ordinal
    started: int = Count
    """Start time of the process in clock ticks since boot, so that a reused pid is not taken for it."""


class Document(_Strict):
    """What all documents share: how they become bytes and are read back."""

    kind: ClassVar[str]
    run: str

    @property
    def key(self) -> str:
        """The key that this document belongs under."""
        raise AssertionError(f"{type(self).__name__} has no key")

    def to_bytes(self) -> bytes:
        return write_digested({"format": FORMAT, "kind": self.kind, **self.model_dump(mode="json")})

    @classmethod
    def parse(cls, data: Buffer, key: str) -> Self:
        """The document read under `key`.

        DamagedError if it is not whole or not the one that `key` names; UsageError if it is whole but of a
        format that this version does not know.
        """
        fields = read_digested(data, key)
        written = fields.pop("format", None)
        if written != FORMAT:
            raise UsageError(f"{key}: format {written!r}, but this version reads {FORMAT}: upgrade")
        if fields.pop("kind", None) != cls.kind:
            raise DamagedError(f"{key}: not a {cls.kind} document")
        try:
            document = cls.model_validate_json(canonical_json(fields), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise DamagedError(f"{key}: {where}: {first['msg']}") from error
        if document.key != key:
            raise DamagedError(f"{key}: holds the document of {document.key}")
        if document.to_bytes() != bytes(data):
            raise DamagedError(f"{key}: has fields that this format does not know")
        return document


class Claim(Document):
    """The right to an epoch: create-only on all targets, held with W of them."""

    kind: ClassVar[str] = "claim"
    epoch: int = Ordinal
    writer: str = Word
    process: Process

    @property
    def key(self) -> str:
        return paths.claim_key(self.run, self.epoch)


class Start(Document):
    """The beginning of an epoch's log, with everything that came before it."""

    kind: ClassVar[str] = "start"
    epoch: int = Ordinal
    writer: str = Word
    n: int = Ordinal
    m: int = Count
    target_uuids: tuple[str, ...]
    parent: str | None
    """Key of the start that this lineage goes on from; None for a run's first."""
    groups: tuple[GroupRef, ...]
    bases: tuple[BaseRef, ...]
    skip: tuple[int, ...]
    """Steps that a rollback says not to compute, ascending."""
    floor: int = Count
    """Bases before this step, and records up to it, may be gone by retention."""
    end_step: int = Count
    """Last step of the lineage; a rollback may cut inside a group."""
    reason: str
    """Why this epoch began: "first", "resume", "rollback", ... For people and for reports."""
    job: dict[str, Any]
    """The resolved job."""
    identity: dict[str, Any]
    """Fingerprints of dataset, recipe source and arithmetic."""
    process: Process

    @property
    def name(self) -> StartName:
        return StartName(self.epoch, self.writer)

    @property
    def key(self) -> str:
        return self.name.key(self.run)


class Holder(Document):
    """Who holds the run now. Replaced every 2 s; a watcher looks at `counter` on its own clock."""

    kind: ClassVar[str] = "holder"
    epoch: int = Ordinal
    writer: str = Word
    counter: int = Count
    released: bool
    """True once the holder has ended in order: nobody needs to wait for its lease."""
    durable_step: int = Count
    """Last step acknowledged so far: a history that ends before it has lost something."""
    agents: tuple[Process, ...]
    """Processes that still put what they hold when the holder dies; a takeover lets them finish."""
    process: Process

    @property
    def key(self) -> str:
        return paths.holder_key(self.run)


class BaseObject(_Strict):
    """One erasure-coded object of a base."""

    name: str
    attempt: int = Count
    """Which attempt's stripes are the object's; others are leftovers."""
    object_bytes: int = Count
    object_digest: str
    """SHA-256 of the object itself, unpacked."""
    payload_bytes: int = Count
    payload_digest: str
    """SHA-256 of what went into the erasure code."""


class BaseManifest(Document):
    """Written last: a base exists when its manifest does."""

    kind: ClassVar[str] = "base"
    step: int = Count
    epoch: int = Ordinal
    writer: str = Word
    n: int = Ordinal
    m: int = Count
    applied: int = Count
    objects: tuple[BaseObject, ...]
    plain: dict[str, Any]
    """State that is not tensors: counters, optimizer scalars and groups, scaler."""
    weights_digest: str
    state_digest: str

    @property
    def name(self) -> BaseName:
        return BaseName(self.step, self.epoch, self.writer)

    @property
    def key(self) -> str:
        return self.name.manifest_key(self.run)

    def object_name(self, entry: BaseObject) -> ObjectName:
        return ObjectName(self.name, entry.name, entry.attempt)


class BaseNote(Document):
    """What was found out about a base after it was written: verified by replay, or never to be used again."""

    kind: ClassVar[str] = "base-note"
    step: int = Count
    epoch: int = Ordinal
    writer: str = Word
    mark: BaseMark
    facts: dict[str, Any]

    @property
    def name(self) -> BaseName:
        return BaseName(self.step, self.epoch, self.writer)

    @property
    def key(self) -> str:
        return self.name.mark_key(self.run, self.mark)


class Degraded(Document):
    """A group that fewer than n targets acknowledged; create-only, durable before it is acknowledged.

    Tells an acknowledged group of which little is left from one that was never put whole.
    """

    kind: ClassVar[str] = "degraded"
    epoch: int = Ordinal
    writer: str = Word
    sequence: int = Ordinal
    first: int = Ordinal
    last: int = Ordinal
    attempt: int = Count

    @model_validator(mode="after")
    def _check_steps(self) -> Self:
        if self.first > self.last:
            raise ValueError(f"first={self.first} must not exceed last={self.last}")
        return self

    @property
    def key(self) -> str:
        name = GroupName(self.epoch, self.writer, self.sequence, self.first, self.last, self.attempt)
        return name.degraded_key(self.run)


class Floor(Document):
    """Retention's announcement, durable before the first delete: no epoch after it needs what lies before."""

    kind: ClassVar[str] = "floor"
    epoch: int = Ordinal
    writer: str = Word
    step: int = Count
    """The older kept base's step: bases before it, and records up to it, may be gone."""

    @property
    def key(self) -> str:
        return StartName(self.epoch, self.writer).floor_key(self.run, self.step)


class Pin(Document):
    """A reader's lease on what stands in one start's lineage from a base on.

    The reader renews `counter`; retention watches that on its own clock.
    """

    kind: ClassVar[str] = "pin"
    id: str = Word
    counter: int = Count
    bases: tuple[BaseRef, ...]
    first: int = Count
    """First step whose record is still needed."""
    purpose: str
    process: Process

    @property
    def key(self) -> str:
        return paths.pin_key(self.run, self.id)
