"""The names of a run's objects in a storage target: how they are written and read back.

    <run>/holder.json                                       who holds the run
    <run>/claim/<epoch>                                     create-only, on all targets
    <run>/start/<epoch>-<writer>.json                       an epoch's start, with its lineage
    <run>/log/<epoch>-<writer>/<seq>.<first>-<last>.<attempt>/<stripe>
    <run>/log/<epoch>-<writer>/<seq>.<first>-<last>.<attempt>/degraded.json   acknowledged with fewer than n
    <run>/base/<step>-<epoch>-<writer>/<object>.<attempt>/<stripe>
    <run>/base/<step>-<epoch>-<writer>.json                 a base's manifest, written last
    <run>/base/<step>-<epoch>-<writer>.<mark>.json          found out later: verified, quarantined
    <run>/floor/<epoch>-<writer>.<step>.json                retention: what lies before may be gone
    <run>/pin/<id>.json                                     a reader's lease

Numbers are decimal without leading zeros, so a name has one spelling. They are compared as integers,
never as text: `iter-960000` is older than `iter-1080000` (Lightning-AI/litgpt#661). The parse functions
answer None for any other name: foreign files in a target are nobody's objects, whatever they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from openclaw_tasks.errors import JobError
from openclaw_tasks.storage.store import TARGET_KEY

_NUMBER = r"(0|[1-9][0-9]{0,17})"
WORD_PATTERN = r"^[A-Za-z0-9_]{1,64}$"
"""What writers, objects and pins may be called."""
_WORD = f"({WORD_PATTERN.strip('^$')})"
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_CLAIM = re.compile(rf"claim/{_NUMBER}")
_START = re.compile(rf"start/{_NUMBER}-{_WORD}\.json")
_GROUP = re.compile(rf"log/{_NUMBER}-{_WORD}/{_NUMBER}\.{_NUMBER}-{_NUMBER}\.{_NUMBER}/{_NUMBER}")
_DEGRADED = re.compile(rf"log/{_NUMBER}-{_WORD}/{_NUMBER}\.{_NUMBER}-{_NUMBER}\.{_NUMBER}/degraded\.json")
_FLOOR = re.compile(rf"floor/{_NUMBER}-{_WORD}\.{_NUMBER}\.json")
_OBJECT = re.compile(rf"base/{_NUMBER}-{_NUMBER}-{_WORD}/{_WORD}\.{_NUMBER}/{_NUMBER}")
_MANIFEST = re.compile(rf"base/{_NUMBER}-{_NUMBER}-{_WORD}\.json")
_MARK = re.compile(rf"base/{_NUMBER}-{_NUMBER}-{_WORD}\.(verified|quarantined)\.json")
_PIN = re.compile(rf"pin/{_WORD}\.json")
_WORD_ONLY = re.compile(_WORD)

BaseMark: TypeAlias = Literal["verified", "quarantined"]


@dataclass(frozen=True, slots=True, order=True)
class StartName:
    """One writer's start of one epoch. Ordered by epoch."""

    epoch: int
    writer: str

    def __post_init__(self) -> None:
        _check_writer(self.epoch, self.writer)

    def key(self, run: str) -> str:
        return f"{run}/start/{self.epoch}-{self.writer}.json"

    def floor_key(self, run: str, step: int) -> str:
        assert step >= 0, step
        return f"{run}/floor/{self.epoch}-{self.writer}.{step}.json"


@dataclass(frozen=True, slots=True, order=True)
class GroupName:
    """One attempt at one group of records: steps `first` to `last`, both included. Ordered by number."""

    epoch: int
    writer: str
    sequence: int
    first: int
    last: int
    attempt: int

    def __post_init__(self) -> None:
        _check_writer(self.epoch, self.writer)
        assert self.sequence >= 1, self
        assert 1 <= self.first <= self.last, self
        assert self.attempt >= 0, self

    def folder(self, run: str) -> str:
        """Prefix of the stripes' keys, with its final slash."""
        steps = f"{self.sequence}.{self.first}-{self.last}.{self.attempt}"
        return f"{log_prefix(run)}{self.epoch}-{self.writer}/{steps}/"

    def key(self, run: str, stripe: int) -> str:
        return f"{self.folder(run)}{stripe}"

    def degraded_key(self, run: str) -> str:
        return f"{self.folder(run)}degraded.json"

    def describe(self) -> str:
        steps = f"steps {self.first} to {self.last}"
        return f"group {self.sequence} of epoch {self.epoch} ({steps}, attempt {self.attempt})"


@dataclass(frozen=True, slots=True, order=True)
class BaseName:
    """One writer's snapshot of the state after `step`. Ordered by step, then epoch."""

    step: int
    epoch: int
    writer: str

    def __post_init__(self) -> None:
        _check_writer(self.epoch, self.writer)
        assert self.step >= 0, self

    def manifest_key(self, run: str) -> str:
        return f"{base_prefix(run)}{self.step}-{self.epoch}-{self.writer}.json"

    def mark_key(self, run: str, mark: BaseMark) -> str:
        return f"{base_prefix(run)}{self.step}-{self.epoch}-{self.writer}.{mark}.json"

    def folder(self, run: str) -> str:
        """Prefix of all its objects' keys, with its final slash."""
        return f"{base_prefix(run)}{self.step}-{self.epoch}-{self.writer}/"

    def describe(self) -> str:
        return f"base of step {self.step} (epoch {self.epoch})"


@dataclass(frozen=True, slots=True, order=True)
class ObjectName:
    """One attempt at one object of a base: `params`, `buffers`, `optimizer`."""

    base: BaseName
    object: str
    attempt: int

    def __post_init__(self) -> None:
        assert _WORD_ONLY.fullmatch(self.object), self
        assert self.attempt >= 0, self

    def folder(self, run: str) -> str:
        """Prefix of the stripes' keys, with its final slash."""
        return f"{self.base.folder(run)}{self.object}.{self.attempt}/"

    def key(self, run: str, stripe: int) -> str:
        return f"{self.folder(run)}{stripe}"

    def describe(self) -> str:
        return f"object {self.object!r} (attempt {self.attempt}) of {self.base.describe()}"


StripedName: TypeAlias = GroupName | ObjectName


def check_run(run: str) -> str:
    """`run` itself, if it may be a run's name; JobError otherwise."""
    if not _RUN.fullmatch(run) or run == TARGET_KEY:
        raise JobError(
            f"run={run!r} must be 1 to 100 letters, digits, '.', '_' or '-', begin with a letter or digit, "
            f"and not be {TARGET_KEY!r}"
        )
    return run


def holder_key(run: str) -> str:
    return f"{run}/holder.json"


def claim_prefix(run: str) -> str:
    return f"{run}/claim/"


def claim_key(run: str, epoch: int) -> str:
    return f"{claim_prefix(run)}{epoch}"


def start_prefix(run: str) -> str:
    return f"{run}/start/"


def log_prefix(run: str) -> str:
    return f"{run}/log/"


def base_prefix(run: str) -> str:
    return f"{run}/base/"


def pin_prefix(run: str) -> str:
    return f"{run}/pin/"


def pin_key(run: str, pin: str) -> str:
    assert _WORD_ONLY.fullmatch(pin), pin
    return f"{pin_prefix(run)}{pin}.json"


def parse_claim_key(run: str, key: str) -> int | None:
    """The epoch that a key claims."""
    match = _match(_CLAIM, run, key)
    return None if match is None else int(match[1])


def parse_start_key(run: str, key: str) -> StartName | None:
    match = _match(_START, run, key)
    return None if match is None or int(match[1]) < 1 else StartName(int(match[1]), match[2])


def parse_group_key(run: str, key: str) -> tuple[GroupName, int] | None:
    """The group that a stripe's key belongs to, and the stripe's index."""
    match = _match(_GROUP, run, key)
    if match is None:
        return None
    name = _group_name(match)
    return None if name is None else (name, int(match[7]))


def parse_degraded_key(run: str, key: str) -> GroupName | None:
    """The group that was acknowledged by fewer than n targets."""
    match = _match(_DEGRADED, run, key)
    return None if match is None else _group_name(match)


def parse_floor_key(run: str, key: str) -> tuple[StartName, int] | None:
    """Whose retention, and the step before which it may have deleted."""
    match = _match(_FLOOR, run, key)
    return None if match is None or int(match[1]) < 1 else (StartName(int(match[1]), match[2]), int(match[3]))


def parse_manifest_key(run: str, key: str) -> BaseName | None:
    match = _match(_MANIFEST, run, key)
    return None if match is None or int(match[2]) < 1 else BaseName(int(match[1]), int(match[2]), match[3])


def parse_mark_key(run: str, key: str) -> tuple[BaseName, BaseMark] | None:
    """The base that a mark is about, and the mark."""
    match = _match(_MARK, run, key)
    if match is None or int(match[2]) < 1:
        return None
    name = BaseName(int(match[1]), int(match[2]), match[3])
    return name, "verified" if match[4] == "verified" else "quarantined"


def parse_object_key(run: str, key: str) -> tuple[ObjectName, int] | None:
    """The base object that a stripe's key belongs to, and the stripe's index."""
    match = _match(_OBJECT, run, key)
    if match is None or int(match[2]) < 1:
        return None
    base = BaseName(int(match[1]), int(match[2]), match[3])
    return ObjectName(base, match[4], int(match[5])), int(match[6])


def parse_pin_key(run: str, key: str) -> str | None:
    """The pin's id."""
    match = _match(_PIN, run, key)
    return None if match is None else match[1]


def _group_name(match: re.Match[str]) -> GroupName | None:
    epoch, sequence, first, last, attempt = (int(match[i]) for i in (1, 3, 4, 5, 6))
    if epoch < 1 or sequence < 1 or not 1 <= first <= last:
        return None
    return GroupName(epoch, match[2], sequence, first, last, attempt)


def _match(pattern: re.Pattern[str], run: str, key: str) -> re.Match[str] | None:
    return pattern.fullmatch(key, len(run) + 1) if key.startswith(f"{run}/") else None


def _check_writer(epoch: int, writer: str) -> None:
    assert epoch >= 1, epoch
    assert _WORD_ONLY.fullmatch(writer), writer
