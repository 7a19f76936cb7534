"""A run's targets: opened together, each known by the identity in its `target.json`.

The identity is written once, when a target first serves any run, and says which place it has among its
sisters. Without it a directory is not a target: an empty mount point is lost, not fresh.
"""

from __future__ import annotations

import secrets
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from openclaw_tasks.errors import (
    AlreadyExistsError,
    DamagedError,
    NotFoundError,
    StoreError,
    StoreTimeoutError,
    TargetLostError,
    TargetUnusableError,
    UsageError,
)
from openclaw_tasks.storage.deadline import Call, DeadlineStore
from openclaw_tasks.storage.digested_json import read_digested, write_digested
from openclaw_tasks.storage.file_store import FileStore
from openclaw_tasks.storage.store import TARGET_KEY, Store, Target

FORMAT = 1
SCHEMES: dict[str, Callable[[str], Target]] = {"file": FileStore}


@dataclass(frozen=True, slots=True)
class TargetSet:
    """The targets in the job's order. Stripe i belongs on target i."""

    urls: tuple[str, ...]
    stores: tuple[Store | None, ...]
    """None: absent; `problems` says why. Every operation of a store has the deadline."""
    uuids: tuple[str | None, ...]
    problems: Mapping[int, str]
    """By index: why a target counts as absent, in one line that names it."""
    blank: frozenset[int]
    """Of the absent, those that definitely hold nothing of ours: never a target, or emptied. The others could
    not be asked, or are damaged. All blank and the run unknown to the index: this is a first start."""

    def present(self) -> list[tuple[int, Store]]:
        """Index and store of the targets that can be used."""
        return [(index, store) for index, store in enumerate(self.stores) if store is not None]

    def missing(self) -> dict[int, str]:
        """Why each absent target is, without the name that `problems` begins with."""
        return {
            index: problem.removeprefix(_place(index, self.urls[index]) + ": ")
            for index, problem in sorted(self.problems.items())
        }

    def sweep_temporaries(self) -> int:
        """Remove dead writers' leftovers from all present targets; the number removed.

        A target that fails is passed over: what it keeps costs space only.
        """
        removed = 0
        for _, store in self.present():
            try:
                removed += store.sweep_temporaries()
            except StoreError:
                continue
        return removed


def open_store(url: str, schemes: Mapping[str, Callable[[str], Target]] = SCHEMES) -> Target:
    """The store of a target's URL, not yet touched; UsageError for a scheme that we do not have."""
    scheme, found, _ = url.partition("://")
    if not found or scheme not in schemes:
        supported = ", ".join(f"{name}://" for name in sorted(schemes))
        raise UsageError(f"target {url!r} is of no supported kind; supported: {supported}")
    return schemes[scheme](url)


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
    created in. UsageError for a URL that cannot be, or an identity of a later format.
    """
    openings = [
        _Opening(index, open_store(url, schemes), create=create, probe=create or probe)
        for index, url in enumerate(urls)
    ]
    try:
        found = _open_all(openings, deadline_seconds)
        _check_places(urls, found)
        targets = _target_set(openings, found, deadline_seconds, known_uuids)
        if create and targets.problems:
            problems = "; ".join(targets.problems.values())
            raise TargetUnusableError(f"a first start needs every target: {problems}")
    except BaseException:
        if create:
            _take_back(openings, deadline_seconds)
        raise
    return targets


@dataclass(frozen=True, slots=True)
class _Identity:
    uuid: str
    index: int


class _Opening:
    """Opening one target, in a thread; takes back what it made when told to, at its end at the latest."""

    def __init__(self, index: int, target: Target, *, create: bool, probe: bool) -> None:
        self.index = index
        self.target = target
        self._create = create
        self._probe = probe
        self._written: bytes | None = None
        self._lock = threading.Lock()
        self._is_over = False
        self._is_unwanted = False

    def run(self) -> _Identity:
        try:
            if self._create:
                self.target.make_root()
            identity = self._identity()
            self.target.bind(TARGET_KEY)
            if self._probe:
                _probe(self.target)
            return identity
        finally:
            with self._lock:
                self._is_over = True
                unwanted = self._is_unwanted
            if unwanted:
                self.remove_identity()
                self.target.unmake_root()

    def give_up(self) -> bool:
        """Whether it is over, so that the caller takes back what it made; else it will do so itself."""
        with self._lock:
            self._is_unwanted = True
            return self._is_over

    def remove_identity(self) -> None:
        """Remove the identity if it was written by us just now."""
        if self._written is not None and self.target.read(TARGET_KEY) == self._written:
            self.target.delete(TARGET_KEY)

    def _identity(self) -> _Identity:
        try:
            return _parse_identity(self.target)
        except NotFoundError:
            if not self._create:
                raise
        fields = {"format": FORMAT, "uuid": uuid.uuid4().hex, "index": self.index}
        self._written = write_digested(fields)
        try:
            self.target.create(TARGET_KEY, self._written)
        except AlreadyExistsError:
            self._written = None  # another start was faster, or another URL is the same place
        return _parse_identity(self.target)


def _parse_identity(target: Target) -> _Identity:
    name = f"{target.url}/{TARGET_KEY}"
    fields = read_digested(target.read(TARGET_KEY), name)
    if fields.get("format") != FORMAT:
        raise UsageError(f"{name}: format {fields.get('format')!r}, but this version reads {FORMAT}: upgrade")
    found, index = fields.get("uuid"), fields.get("index")
    if not isinstance(found, str) or type(index) is not int or fields.keys() != {"format", "uuid", "index"}:
        raise DamagedError(f"{name}: is not a target's identity")
    return _Identity(found, index)


def _probe(target: Target) -> None:
    """TargetUnusableError unless a key can be created once, and only once."""
    key = f".probe-{secrets.token_hex(8)}"
    target.create(key, b"first")
    try:
        target.create(key, b"second")
    except AlreadyExistsError:
        if target.read(key) == b"first":
            return
    finally:
        target.delete(key)
    raise TargetUnusableError(f"{target.url}: lets an existing key be created again, so no claim would hold there")


_Found = _Identity | StoreError | DamagedError | TargetUnusableError


def _open_all(openings: Sequence[_Opening], deadline_seconds: float) -> list[_Found]:
    """By target: its identity, or why it cannot be used."""
    end = time.monotonic() + deadline_seconds
    calls = [Call(opening.run, f"opening {opening.target.url}") for opening in openings]
    found: list[_Found] = []
    for call in calls:
        if not call.wait(max(0.0, end - time.monotonic())):
            found.append(StoreTimeoutError(f"no answer within {deadline_seconds:g} s (store.deadline)"))
            continue
        try:
            found.append(call.result())
        except (StoreError, DamagedError, TargetUnusableError) as error:
            found.append(error)
    return found


def _check_places(urls: Sequence[str], found: Sequence[_Found]) -> None:
    """TargetUnusableError if two targets are one place, or not in the order they were created in."""
    seen: dict[str, str] = {}
    for url, identity in zip(urls, found, strict=True):
        if not isinstance(identity, _Identity):
            continue
        if identity.uuid in seen:
            raise TargetUnusableError(
                f"targets {seen[identity.uuid]} and {url} are one and the same place; give each its own"
            )
        seen[identity.uuid] = url
    for index, (url, identity) in enumerate(zip(urls, found, strict=True)):
        if isinstance(identity, _Identity) and identity.index != index:
            raise TargetUnusableError(
                f"target {url} stands at place {index} of store.targets, but was created for place "
                f"{identity.index} (counted from 0); restore the order, or choose unused targets"
            )


def _target_set(
    openings: Sequence[_Opening],
    found: Sequence[_Found],
    deadline_seconds: float,
    known_uuids: Sequence[str | None] | None,
) -> TargetSet:
    known = known_uuids or [None] * len(openings)
    stores: list[Store | None] = []
    uuids: list[str | None] = []
    problems: dict[int, str] = {}
    blank: set[int] = set()
    for opening, result, expected in zip(openings, found, known, strict=True):
        where = _place(opening.index, opening.target.url)
        usable = False
        if not isinstance(result, _Identity):
            problems[opening.index] = f"{where}: {result}"
            if isinstance(result, NotFoundError | TargetLostError):
                blank.add(opening.index)
        elif expected is not None and result.uuid != expected:
            problems[opening.index] = f"{where}: another target stands there (uuid {result.uuid}, not {expected})"
        else:
            usable = True
        stores.append(DeadlineStore(opening.target, deadline_seconds) if usable else None)
        uuids.append(result.uuid if usable and isinstance(result, _Identity) else None)
    return TargetSet(tuple(o.target.url for o in openings), tuple(stores), tuple(uuids), problems, frozenset(blank))


def _place(index: int, url: str) -> str:
    return f"target {index} ({url})"


def _take_back(openings: Sequence[_Opening], deadline_seconds: float) -> None:
    """Remove what a failed first start made. Openings that still hang do it themselves if they ever end."""
    over = [opening for opening in openings if opening.give_up()]

    def take_back() -> None:
        for opening in over:
            with suppress(StoreError):
                opening.remove_identity()
        while sum(opening.target.unmake_root() for opening in over):
            pass  # a folder that several targets share is empty only once the last has left it

    Call(take_back, "taking back targets").wait(deadline_seconds)
