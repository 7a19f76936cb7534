"""A run's history as the targets show it: its lineage, where each part stands, what is wrong (generators).

Read by a writer after its claim (then nothing acknowledged can be missing from what it reads) and, without a
claim, by readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from openclaw_tasks.checkpoint.chain import Attempt, Link, Stuck, follow
from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.documents import BaseManifest, Holder, Start
from openclaw_tasks.checkpoint.lineage import BaseRef, GroupRef, Lineage
from openclaw_tasks.checkpoint.operations import Steps, name_problem
from openclaw_tasks.checkpoint.paths import GroupName, StripedName
from openclaw_tasks.checkpoint.run_documents import (
    ManifestCopies,
    Manifests,
    base_name,
    check_code,
    floor_of,
    object_names,
    read_holders,
    read_manifests,
    read_start,
)
from openclaw_tasks.checkpoint.survey import (
    Payload,
    Survey,
    inspect_deeply,
    inspect_headers,
    seen_of,
    survey,
)
from openclaw_tasks.errors import DataLossError, NotDurableError

DEEP_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class KnownBase:
    """A base that can be read: its manifest, where that stands, and its objects' stripes."""

    ref: BaseRef
    manifest: BaseManifest
    copies: frozenset[int]
    other_copies: frozenset[int]
    """Targets that hold another putter's manifest of the same base, which serves as well."""
    objects: tuple[Payload, ...]


@dataclass(frozen=True, slots=True)
class History:
    """What was found. `start` is None for a run that never started; then the lineage is empty.

    `groups`: the payloads of those of `lineage.groups` that reach beyond the floor, in order. `stuck`: the
    history may be longer, or has a hole; it must not be gone on from.
    """

    code: Code
    survey: Survey
    start: Start | None
    lineage: Lineage
    groups: tuple[Payload, ...]
    bases: tuple[KnownBase, ...]
    stuck: Stuck | None
    notes: tuple[str, ...]
    """What is not as it should be, but does no harm yet; one line each."""


@dataclass(slots=True)
class _Reading:
    """What has been read so far, on the way to a History."""

    code: Code
    found: Survey
    start: Start
    floor: int
    holders: Sequence[Holder]
    tail: Sequence[GroupName]
    manifests: Manifests
    payloads: dict[StripedName, Payload]

    @property
    def old(self) -> list[GroupRef]:
        """The groups of the start document that are still needed."""
        return [ref for ref in self.start.groups if ref.last > self.floor]

    def byte_count(self) -> int:
        """Of all stripes, as far as headers and manifests tell."""
        headers = [self.payloads[name].header for name in self.tail]
        manifests = [copy.manifest for copies in self.manifests.versions.values() for copy in copies]
        payload_bytes = (
            sum(ref.size for ref in self.old)
            + sum(header.payload_bytes for header in headers if header is not None)
            + sum(entry.payload_bytes for manifest in manifests for entry in manifest.objects)
        )
        return payload_bytes * self.code.n // self.code.k


def read_history(
    run: str, num_targets: int, code: Code | None = None, *, deep_bytes: int = DEEP_BYTES
) -> Steps[History]:
    """Read the run's newest lineage.

    code: refuse a run that was started with another one; None: take the run's.
    deep_bytes: read every stripe when all together have at most so many bytes, else trust names.
    NotDurableError when too few targets answer; JobError when the code is another one.
    """
    holders = yield from read_holders(run, num_targets)  # before the listing, which must then show as much
    found = yield from survey(num_targets, run)
    start, stuck = yield from read_start(found)
    if start is None:
        empty = Lineage(epoch=0, writer="")
        return History(code or Code(num_targets, 0), found, None, empty, (), (), stuck, ())
    code = check_code(start, num_targets, code)
    floor = floor_of(found, start)
    tail = [
        name
        for name in sorted(found.groups)
        if (name.epoch, name.writer) == (start.epoch, start.writer) and name.last > floor
    ]
    return (yield from _read_lineage(code, found, start, holders, tail, deep_bytes))


def read_known_history(start: Start, *, deep_bytes: int = 0) -> Steps[History]:
    """Where the parts of a history stand that its writer knows, and lists in `start`. No log is read for it.

    NotDurableError when too few targets answer.
    """
    found = yield from survey(start.n, start.run)
    return (yield from _read_lineage(Code(start.n, start.m), found, start, [], [], deep_bytes))


def _read_lineage(
    code: Code,
    found: Survey,
    start: Start,
    holders: Sequence[Holder],
    tail: Sequence[GroupName],
    deep_bytes: int,
) -> Steps[History]:
    """What `start` lists, and the groups named in `tail`, which may follow it."""
    payloads = yield from inspect_headers(code, found, tail)
    manifests = yield from read_manifests(found, start, floor_of(found, start))
    reading = _Reading(code, found, start, floor_of(found, start), holders, tail, manifests, payloads)
    names: list[StripedName] = [group_name(ref) for ref in reading.old]
    for copies in manifests.versions.values():
        names += [name for copy in copies for name in object_names(copy.manifest)]
    if reading.byte_count() <= deep_bytes:
        payloads.update((yield from inspect_deeply(code, found, [*tail, *names])))
    else:
        payloads.update({name: _seen_by_name(found, name) for name in names})
        payloads.update((yield from inspect_deeply(code, found, _half_put(found, tail))))
    return _assemble(reading)


def _half_put(found: Survey, tail: Sequence[GroupName]) -> list[GroupName]:
    """Groups that cannot have been acknowledged: whether they are whole enough to be adopted is not left to names."""
    everywhere = found.num_targets
    return [
        name for name in tail if name not in found.degraded and len(seen_of(found, name) | found.unknown) < everywhere
    ]


def read_newest_start(run: str, code: Code) -> Steps[Start | None]:
    """The document of the newest start, without its log; None for a run that never started.

    NotDurableError when too few targets answer; DataLossError when it is damaged everywhere; JobError when its
    code is another one.
    """
    found = yield from survey(code.n, run)
    start, stuck = yield from read_start(found)
    if stuck is not None:
        raise (DataLossError if stuck.is_lost else NotDurableError)(f"run {run!r}: {stuck.message}")
    if start is not None:
        check_code(start, code.n, code)
    return start


def group_name(ref: GroupRef) -> GroupName:
    return GroupName(ref.epoch, ref.writer, ref.seq, ref.first, ref.last, ref.attempt)


def groups_beyond(groups: Sequence[GroupRef], floor: int) -> tuple[GroupRef, ...]:
    """The groups that reach beyond `floor`; at least the last, which the next group has to name."""
    return tuple(ref for ref in groups if ref.last > floor) or tuple(groups[-1:])


def _seen_by_name(found: Survey, name: StripedName) -> Payload:
    seen = seen_of(found, name)
    return Payload(name, seen, seen, found.unknown, None)


def _assemble(reading: _Reading) -> History:
    start, code = reading.start, reading.code
    old = [_settled(reading.payloads[group_name(ref)], ref) for ref in reading.old]
    attempts = [_attempt(reading.payloads[name], name in reading.found.degraded) for name in reading.tail]
    chain, stuck = follow(_link_after(start, reading.floor), attempts, code)
    end_step = chain[-1].last if chain else max(start.end_step, reading.floor)
    bases, notes = _usable_bases(reading)
    for finding in (
        _hole(reading, old),
        stuck,
        _later_evidence(reading, end_step),
        _no_base(reading, bases, end_step),
    ):
        if finding is not None:
            stuck = finding
            break
    lineage = Lineage(
        epoch=start.epoch,
        writer=start.writer,
        groups=groups_beyond([*start.groups, *chain], reading.floor),
        bases=tuple(base.ref for base in bases),
        skip=start.skip,
        floor=reading.floor,
        end_step=end_step,
        identity=start.identity,
        job=start.job,
    )
    groups = (*old, *(reading.payloads[group_name(ref)] for ref in chain))
    notes += _notes_by_target(reading, groups, bases)
    return History(code, reading.found, start, lineage, groups, tuple(bases), stuck, tuple(notes))


def _link_after(start: Start, floor: int) -> Link:
    if floor > start.end_step:
        return Link(None, floor, None)
    last = start.groups[-1] if start.groups else None
    return Link(last.seq if last else 0, start.end_step, last.digest if last else "")


def _settled(payload: Payload, ref: GroupRef) -> Payload:
    """A lineage's group: stripes of any other payload than the one it names are damaged ones."""
    if payload.header is not None and payload.header.payload_digest != ref.digest:
        return replace(payload, valid=frozenset(), header=None)
    return payload


def _attempt(payload: Payload, marked: bool) -> Attempt:
    name, header = payload.name, payload.header
    assert isinstance(name, GroupName)
    ref = None
    if header is not None:
        ref = GroupRef(
            epoch=name.epoch,
            writer=name.writer,
            seq=name.sequence,
            attempt=name.attempt,
            first=name.first,
            last=name.last,
            previous=header.identity.previous_digest or "",
            digest=header.payload_digest,
            size=header.payload_bytes,
        )
    return Attempt(name, ref, payload.seen, payload.valid, payload.unknown, marked)


def _usable_bases(reading: _Reading) -> tuple[list[KnownBase], list[str]]:
    """The bases whose manifest and objects are there, by step; and a line for each that is not."""
    bases: list[KnownBase] = []
    notes: list[str] = []
    said_verified = {base_name(ref) for ref in reading.start.bases if ref.verified}
    for name, versions in reading.manifests.versions.items():
        verified = name in said_verified or (name, "verified") in reading.found.marks
        ref = BaseRef(epoch=name.epoch, writer=name.writer, step=name.step, verified=verified)
        complete: list[KnownBase] = []
        for version in versions:
            objects = _objects(reading, version)
            if all(len(payload.valid) >= reading.code.k for payload in objects):
                others = frozenset[int]().union(*(other.targets for other in versions)) - version.targets
                complete.append(KnownBase(ref, version.manifest, version.targets, others, objects))
        if complete:
            bases.append(max(complete, key=lambda base: (len(base.copies), base.manifest.to_bytes())))
        else:
            notes.append(f"{name.describe()} is left out: it cannot be rebuilt from the targets that answer")
    return bases, notes


def _objects(reading: _Reading, version: ManifestCopies) -> tuple[Payload, ...]:
    """The payloads a manifest names; stripes of any other payload under the same name count as damaged."""
    payloads: list[Payload] = []
    for entry, name in zip(version.manifest.objects, object_names(version.manifest), strict=True):
        payload = reading.payloads[name]
        if payload.header is not None and payload.header.payload_digest != entry.payload_digest:
            payload = replace(payload, valid=frozenset(), header=None)
        payloads.append(payload)
    return tuple(payloads)


def _hole(reading: _Reading, old: Sequence[Payload]) -> Stuck | None:
    """A group of the lineage that cannot be rebuilt. It was durable once: it is never dropped."""
    broken = [payload for payload in old if len(payload.valid) < reading.code.k]
    if not broken:
        return None
    lost = [payload for payload in broken if len(payload.valid | payload.unknown) < reading.code.k]
    worst = (lost or broken)[0]
    message = (
        f"{worst.name.describe()} is part of the history and cannot be rebuilt: {len(worst.valid)} whole "
        f"stripes of the {reading.code.k} needed, damaged on targets {sorted(worst.damaged)}, "
        f"no answer from {sorted(worst.unknown)}"
    )
    return Stuck(message, is_lost=bool(lost))


def _later_evidence(reading: _Reading, end_step: int) -> Stuck | None:
    """Something that could only be written once a later step than the last one found was durable."""
    start, found = reading.start, reading.found
    silent = not found.unknown
    for holder in reading.holders:
        if (holder.epoch, holder.writer) == (start.epoch, start.writer) and holder.durable_step > end_step:
            message = f"steps {end_step + 1} to {holder.durable_step} were durable, and none of them is found"
            return Stuck(message, is_lost=silent)
    for name, mark in found.marks:
        own = (name.epoch, name.writer) == (start.epoch, start.writer)
        if own and mark == "verified" and name.step > end_step:
            message = f"{name.describe()} was verified, but the log ends at step {end_step}"
            return Stuck(message, is_lost=silent)
    return None


def _no_base(reading: _Reading, bases: Sequence[KnownBase], end_step: int) -> Stuck | None:
    if any(base.ref.step <= end_step for base in bases) or not (end_step or reading.start.bases):
        return None
    k = reading.code.k
    could_return = any(
        name in reading.manifests.silent
        or any(
            all(len(payload.valid | payload.unknown) >= k for payload in _objects(reading, version))
            for version in versions
        )
        for name, versions in reading.manifests.versions.items()
        if name.step <= end_step
    )
    steps = sorted(name.step for name in reading.manifests.versions)
    return Stuck(f"no base up to step {end_step} can be rebuilt (bases known: {steps})", not could_return)


def _notes_by_target(reading: _Reading, groups: Iterable[Payload], bases: Iterable[KnownBase]) -> list[str]:
    notes = [name_problem(target, error) for target, error in sorted(reading.found.problems.items())]
    payloads = [*groups, *(payload for base in bases for payload in base.objects)]
    for target in sorted(reading.found.answered):
        missing = sum(target not in payload.seen | payload.unknown for payload in payloads)
        damaged = sum(target in payload.damaged for payload in payloads)
        lacking = sum(target not in base.copies | base.other_copies for base in bases)
        if missing or damaged or lacking:
            notes.append(
                f"target {target}: of {len(payloads)} stripes {missing} missing and {damaged} damaged, "
                f"{lacking} manifests missing"
            )
    return notes
