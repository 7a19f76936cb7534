"""Reading a run's documents from its targets: start, manifests, holder (generators).

A copy that does not match its digest is passed over for another target's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openclaw_tasks.checkpoint import paths
from openclaw_tasks.checkpoint.chain import Stuck
from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.documents import BaseManifest, Holder, Start
from openclaw_tasks.checkpoint.lineage import BaseRef
from openclaw_tasks.checkpoint.operations import Steps, read_all
from openclaw_tasks.checkpoint.paths import BaseName, ObjectName, StartName
from openclaw_tasks.checkpoint.survey import Survey
from openclaw_tasks.errors import DamagedError, JobError, NotFoundError, StoreError


@dataclass(frozen=True, slots=True)
class ManifestCopies:
    """One version of a base's manifest, and the targets that hold it whole."""

    manifest: BaseManifest
    targets: frozenset[int]


def read_holders(run: str, num_targets: int) -> Steps[list[Holder]]:
    """The copies of the run's `holder.json` that are whole."""
    key = paths.holder_key(run)
    answers = yield from read_all([(target, key) for target in range(num_targets)])
    holders: list[Holder] = []
    for answer in answers.values():
        if not isinstance(answer, StoreError):
            try:
                holders.append(Holder.parse(answer, key))
            except DamagedError:
                continue
    return holders


def read_start(found: Survey) -> Steps[tuple[Start | None, Stuck | None]]:
    """The newest start that can be read; Stuck when a newer one that may have counted cannot be."""
    majority = Code(found.num_targets, 0).write_quorum
    for name in sorted(found.starts, reverse=True):
        key = name.key(found.run)
        answers = yield from read_all([(target, key) for target in sorted(found.starts[name])])
        silent = set(found.unknown)
        for (target, _), answer in answers.items():
            if isinstance(answer, StoreError):
                silent.add(target)
                continue
            try:
                return Start.parse(answer, key), None
            except DamagedError:
                continue
        if len(found.starts[name] | silent) >= majority:
            message = f"{key} cannot be read: damaged or without answer on targets {sorted(found.starts[name])}"
            return None, Stuck(message, is_lost=not silent)
    return None, None


def check_code(start: Start, num_targets: int, wanted: Code | None) -> Code:
    if start.n != num_targets:
        raise JobError(f"run {start.run!r} has {start.n} targets, but store.targets names {num_targets}")
    code = Code(start.n, start.m)
    if wanted is not None and wanted != code:
        raise JobError(
            f"run {start.run!r} was started with store.redundancy={code.m}, but the job says {wanted.m}; "
            "it is fixed for a run's life"
        )
    return code


@dataclass(frozen=True, slots=True)
class Manifests:
    """What was found of the bases' manifests."""

    versions: Mapping[BaseName, Sequence[ManifestCopies]]
    """Whole ones, by base; empty where none could be read."""
    silent: frozenset[BaseName]
    """Bases of which a manifest may stand on a target that did not answer."""


def read_manifests(found: Survey, start: Start, floor: int) -> Steps[Manifests]:
    """All manifests of the lineage's bases from the floor on, quarantined bases left out."""
    own = (name for name in found.manifests if (name.epoch, name.writer) == (start.epoch, start.writer))
    names = sorted({*(base_name(ref) for ref in start.bases), *own})
    names = [name for name in names if name.step >= floor and (name, "quarantined") not in found.marks]
    places = [
        (target, name.manifest_key(found.run)) for name in names for target in sorted(found.manifests.get(name, ()))
    ]
    answers = yield from read_all(places)
    versions: dict[BaseName, list[ManifestCopies]] = {}
    silent = set(names) if found.unknown else set()
    for name in names:
        key = name.manifest_key(found.run)
        copies: defaultdict[bytes, set[int]] = defaultdict(set)
        for target in sorted(found.manifests.get(name, ())):
            answer = answers[target, key]
            if not isinstance(answer, StoreError):
                copies[answer].add(target)
            elif not isinstance(answer, NotFoundError):
                silent.add(name)
        versions[name] = []
        for data, targets in copies.items():
            try:
                versions[name].append(ManifestCopies(BaseManifest.parse(data, key), frozenset(targets)))
            except DamagedError:
                continue
    return Manifests(versions, frozenset(silent))


def floor_of(found: Survey, start: Start) -> int:
    """The step before which retention may have deleted, in the lineage of `start`."""
    return max([start.floor, *(step for name, step in found.floors if name == start.name)])


def base_name(ref: BaseRef) -> BaseName:
    return BaseName(ref.step, ref.epoch, ref.writer)


def object_names(manifest: BaseManifest) -> list[ObjectName]:
    return [manifest.object_name(entry) for entry in manifest.objects]


def read_start_named(run: str, code: Code, name: StartName) -> Steps[Start | None]:
    """One start's document; None if no target that answers has it whole."""
    key = name.key(run)
    answers = yield from read_all([(target, key) for target in range(code.n)])
    for answer in answers.values():
        if not isinstance(answer, StoreError):
            try:
                return Start.parse(answer, key)
            except DamagedError:
                continue
    return None
