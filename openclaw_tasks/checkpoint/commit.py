"""Commit: when a group, a base, or a note about a base counts (generators, see operations.py).

The one rule behind all of it: put, *then* look at `claim/`. A writer that saw no higher epoch on n - W + 1
targets after its put was durable knows that any later epoch, which claims on W targets before it reads, will
read what was put. So nothing acknowledged is missed, and a writer that was overtaken never acknowledges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from openclaw_tasks.checkpoint import paths
from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.documents import BaseManifest, BaseNote, Degraded
from openclaw_tasks.checkpoint.operations import (
    Steps,
    create_each,
    create_everywhere,
    list_everywhere,
    read_all,
    require,
)
from openclaw_tasks.checkpoint.paths import GroupName, ObjectName
from openclaw_tasks.errors import DamagedError, FencedError, StoreError
from openclaw_tasks.storage.store import Buffer


@dataclass(frozen=True, slots=True)
class StripedObject:
    """One object of a base, ready to be put: its name and its n stripe files."""

    name: ObjectName
    stripes: Sequence[Buffer]


def highest_claim(run: str, keys: Mapping[int, Sequence[str]]) -> int:
    """The highest epoch that the listed keys claim; 0 if none."""
    epochs = (paths.parse_claim_key(run, key) for listed in keys.values() for key in listed)
    return max((epoch for epoch in epochs if epoch is not None), default=0)


def refuse_if_overtaken(run: str, epoch: int, keys: Mapping[int, Sequence[str]]) -> None:
    """FencedError when the listed keys claim an epoch above `epoch`."""
    highest = highest_claim(run, keys)
    if highest > epoch:
        raise FencedError(f"run {run!r}: epoch {highest} was claimed by another writer, so epoch {epoch} ends here")


def check_fence(code: Code, run: str, epoch: int) -> Steps[None]:
    """FencedError when a newer epoch is claimed; NotDurableError when too few targets can say."""
    listing = yield from list_everywhere(code, paths.claim_prefix(run))
    refuse_if_overtaken(run, epoch, listing.keys)
    require(f"run {run!r}: claims of newer epochs", listing.keys, code.fence_quorum, listing.problems)


def commit_group(code: Code, run: str, name: GroupName, stripes: Sequence[Buffer]) -> Steps[frozenset[int]]:
    """Put the group's stripes, then check the fence; the targets that hold one.

    With fewer than n of them the group is marked as degraded before it counts.
    Raises FencedError, NotDurableError: then nothing is acknowledged, and the group may be repeated as a new
    attempt.
    """
    what = f"run {run!r}: {name.describe()}"
    written = yield from create_each({index: (name.key(run, index), stripe) for index, stripe in enumerate(stripes)})
    require(what, written.acked, code.group_quorum, written.problems)
    if len(written.acked) < code.n:
        mark = Degraded(
            run=run,
            epoch=name.epoch,
            writer=name.writer,
            sequence=name.sequence,
            first=name.first,
            last=name.last,
            attempt=name.attempt,
        )
        marked = yield from create_everywhere(code, mark.key, mark.to_bytes())
        require(f"{what}: degraded mark", marked.acked, code.group_quorum, marked.problems)
    yield from check_fence(code, run, name.epoch)
    return written.acked


def commit_base(
    code: Code, run: str, epoch: int, objects: Iterable[StripedObject], manifest: Callable[[], BaseManifest]
) -> Steps[frozenset[int]]:
    """Put every object's stripes and read them back, check the fence, then put the manifest, check it again.

    `objects` may make each one when it is asked for: none is held any more when the next is made. `manifest` is
    called when all are durable. Returns the targets that hold every stripe and a manifest. Another putter's manifest
    of the same base serves as well: its objects were as durable before it was written.
    Raises FencedError, NotDurableError.
    """
    whole = set(range(code.n))
    for item in objects:
        whole &= yield from _put_and_read_back(code, run, item)
        del item
    yield from check_fence(code, run, epoch)
    return (yield from _commit_manifest(code, manifest(), whole))


def _commit_manifest(code: Code, manifest: BaseManifest, whole: set[int]) -> Steps[frozenset[int]]:
    run = manifest.run
    written = yield from create_everywhere(
        code, manifest.key, manifest.to_bytes(), serves=lambda found: _is_manifest(found, manifest.key)
    )
    require(f"run {run!r}: manifest {manifest.key}", written.acked, code.write_quorum, written.problems)
    yield from check_fence(code, run, manifest.epoch)
    return frozenset(whole & written.acked)


def commit_note(code: Code, epoch: int, note: BaseNote) -> Steps[None]:
    """Mark a base as verified or quarantined, as the holder of `epoch`.

    Raises FencedError, NotDurableError.
    """
    yield from check_fence(code, note.run, epoch)
    written = yield from create_everywhere(
        code, note.key, note.to_bytes(), serves=lambda found: _is_note(found, note.key)
    )
    require(f"run {note.run!r}: {note.key}", written.acked, code.write_quorum, written.problems)


def _put_and_read_back(code: Code, run: str, item: StripedObject) -> Steps[frozenset[int]]:
    """KempnerInstitute/KempnerForge#102: what a manifest names has been read back first."""
    what = f"run {run!r}: {item.name.describe()}"
    keys = [item.name.key(run, index) for index in range(code.n)]
    written = yield from create_each({i: (keys[i], stripe) for i, stripe in enumerate(item.stripes)})
    require(what, written.acked, code.group_quorum, written.problems)
    problems: dict[int, StoreError] = dict(written.problems)
    held: set[int] = set()
    for index in sorted(written.acked):
        key = keys[index]
        # One after the other: together they are as large as what was put, which is here, too.
        answer = (yield from read_all([(index, key)]))[index, key]
        if isinstance(answer, StoreError):
            problems[index] = answer
        elif answer != item.stripes[index]:
            problems[index] = StoreError(f"{key}: other bytes were read than written")
        else:
            held.add(index)
    require(f"{what}, read back", held, code.group_quorum, problems)
    return frozenset(held)


def _is_manifest(found: bytes, key: str) -> bool:
    try:
        BaseManifest.parse(found, key)
    except DamagedError:
        return False
    return True


def _is_note(found: bytes, key: str) -> bool:
    try:
        BaseNote.parse(found, key)
    except DamagedError:
        return False
    return True
