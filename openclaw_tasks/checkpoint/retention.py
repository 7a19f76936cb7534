"""Retention: what may be deleted, and deleting it (generators).

Kept are two verified bases and the log back to the older one, the *floor*. The floor is announced first, like
a group is committed: `floor/` on W targets, and only then a look at `claim/` and `pin/`. So every later epoch
reads the floor and asks for nothing before it; and a reader, who puts its pin on W targets before it reads
the floor again, either is seen here or has seen the floor. Manifests go before the data they name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from openclaw_tasks.checkpoint import paths
from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.commit import refuse_if_overtaken
from openclaw_tasks.checkpoint.documents import Floor, Pin
from openclaw_tasks.checkpoint.lineage import BaseRef
from openclaw_tasks.checkpoint.operations import (
    Delete,
    List,
    Listing,
    Pause,
    Steps,
    create_everywhere,
    list_everywhere,
    read_all,
    require,
)
from openclaw_tasks.errors import DamagedError, StoreError


@dataclass(frozen=True, slots=True)
class Retained:
    """`pins`: counters of the pins seen, by id (-1: unreadable); one that stays the same has lost its reader."""

    floor: int
    keys_deleted: int
    pins: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Pinned:
    counter: int
    first: int


def choose_floor(bases: Sequence[BaseRef], durable_step: int) -> int | None:
    """The step of the older of the two newest verified bases within the durable log; None: keep everything."""
    steps = sorted({base.step for base in bases if base.verified and base.step <= durable_step})
    return steps[-2] if len(steps) >= 2 else None


def retain(
    code: Code, run: str, epoch: int, writer: str, floor: int, *, expired: Collection[str], grace_seconds: float
) -> Steps[Retained]:
    """Announce `floor`, let the grace pass, then delete what lies before it and no living pin needs.

    expired: pins whose readers are gone; they are deleted as well.
    Raises FencedError (nothing more is deleted), NotDurableError (too few targets can tell).
    """
    document = Floor(run=run, epoch=epoch, writer=writer, step=floor)
    announced = yield from create_everywhere(code, document.key, document.to_bytes())
    require(f"run {run!r}: {document.key}", announced.acked, code.write_quorum, announced.problems)
    yield [Pause(grace_seconds)]
    pins = yield from _look_again(code, run, epoch)
    living = {pin: pinned for pin, pinned in pins.items() if pin not in expired}
    keep = min([floor, *(pinned.first - 1 for pinned in living.values())])
    listing = yield from list_everywhere(code, f"{run}/")
    deleted = 0
    for batch in plan_deletions(run, listing, keep, expired):
        now = yield from _look_again(code, run, epoch)
        if any(pin not in pins for pin in now):
            break  # a reader came: the next pass takes its pin into account
        answers = yield batch
        deleted += sum(not isinstance(answer, StoreError) for answer in answers)
    counters = {pin: pinned.counter for pin, pinned in pins.items()}
    return Retained(floor, deleted, counters)


def plan_deletions(run: str, listing: Listing, keep: int, expired: Collection[str] = ()) -> list[list[Delete]]:
    """Batches in order: all manifests of bases before step `keep`, then one base's or one group's objects each.

    Whatever lies before `keep` goes, whichever epoch wrote it: leftovers of dead writers too.
    """
    manifests: list[Delete] = []
    data: defaultdict[tuple[int, str], list[Delete]] = defaultdict(list)
    for target, keys in sorted(listing.keys.items()):
        for key in keys:
            operation = Delete(target, key)
            if (base := paths.parse_manifest_key(run, key)) is not None:
                if base.step < keep:
                    manifests.append(operation)
            elif (mark := paths.parse_mark_key(run, key)) is not None:
                if mark[0].step < keep:
                    data[mark[0].step, mark[0].folder(run)].append(operation)
            elif (item := paths.parse_object_key(run, key)) is not None:
                if item[0].base.step < keep:
                    data[item[0].base.step, item[0].base.folder(run)].append(operation)
            elif (stripe := paths.parse_group_key(run, key)) is not None:
                if stripe[0].last <= keep:
                    data[stripe[0].last, stripe[0].folder(run)].append(operation)
            elif (group := paths.parse_degraded_key(run, key)) is not None:
                if group.last <= keep:
                    data[group.last, group.folder(run)].append(operation)
            elif (floor := paths.parse_floor_key(run, key)) is not None:
                if floor[1] < keep:
                    data[floor[1], "floor"].append(operation)
            elif paths.parse_pin_key(run, key) in expired:
                data[keep, "pin"].append(operation)
    batches = [manifests] if manifests else []
    return batches + [data[place] for place in sorted(data)]


def _look_again(code: Code, run: str, epoch: int) -> Steps[dict[str, _Pinned]]:
    """Refuse when overtaken; else the pins that stand now."""
    prefixes = [
        List(target, prefix) for prefix in (paths.claim_prefix(run), paths.pin_prefix(run)) for target in range(code.n)
    ]
    answers = yield prefixes
    keys: defaultdict[int, list[str]] = defaultdict(list)
    problems: dict[int, StoreError] = {}
    for operation, answer in zip(prefixes, answers, strict=True):
        if isinstance(answer, StoreError):
            problems[operation.target] = answer
        else:
            assert isinstance(answer, list)
            keys[operation.target] += answer
    answered = {target: found for target, found in keys.items() if target not in problems}
    refuse_if_overtaken(run, epoch, keys)
    require(f"run {run!r}: claims and pins", answered, code.fence_quorum, problems)
    places = [
        (target, key)
        for target, found in answered.items()
        for key in found
        if paths.parse_pin_key(run, key) is not None
    ]
    documents = yield from read_all(places)
    pins: dict[str, _Pinned] = {}
    for (_, key), document in documents.items():
        pin = paths.parse_pin_key(run, key)
        assert pin is not None
        pinned = _read_pin(key, document)
        if pin not in pins or pins[pin].counter < pinned.counter:
            pins[pin] = pinned
    return pins


def _read_pin(key: str, document: bytes | StoreError) -> _Pinned:
    """A pin that cannot be read keeps everything, until its reader shows to be gone."""
    if not isinstance(document, StoreError):
        try:
            pin = Pin.parse(document, key)
        except DamagedError:
            return _Pinned(counter=-1, first=0)
        return _Pinned(counter=pin.counter, first=pin.first)
    return _Pinned(counter=-1, first=0)
