"""What the targets show of a run: which objects stand where, and which stripes are whole (generators).

`survey` is one listing of each target. `inspect_deeply` reads every stripe, `inspect_headers` one of each
payload. What a target did not answer is kept apart from what it answered: cannot read is never not there
(awslabs/mountpoint-s3#1422).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from openclaw_tasks.checkpoint import paths
from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.operations import Steps, list_everywhere, read_all, require
from openclaw_tasks.checkpoint.paths import BaseMark, BaseName, GroupName, ObjectName, StartName, StripedName
from openclaw_tasks.checkpoint.stripes import StripeHeader, parse_stripe
from openclaw_tasks.errors import DamagedError, NotFoundError, StoreError

_PAYLOADS_IN_ONE_BATCH = 4
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Survey:
    """Names seen, each with the targets that show it. Stripes count only on the target of their index."""

    run: str
    num_targets: int
    problems: Mapping[int, StoreError]
    """Targets that did not answer."""
    claimed_epoch: int
    starts: Mapping[StartName, frozenset[int]]
    groups: Mapping[GroupName, frozenset[int]]
    degraded: frozenset[GroupName]
    manifests: Mapping[BaseName, frozenset[int]]
    marks: Mapping[tuple[BaseName, BaseMark], frozenset[int]]
    objects: Mapping[ObjectName, frozenset[int]]
    floors: frozenset[tuple[StartName, int]]
    pins: Mapping[str, frozenset[int]]
    holders: frozenset[int]

    @property
    def answered(self) -> frozenset[int]:
        return frozenset(range(self.num_targets)) - self.problems.keys()

    @property
    def unknown(self) -> frozenset[int]:
        return frozenset(self.problems)


@dataclass(frozen=True, slots=True)
class Payload:
    """One erasure-coded payload and the state of its stripes, by target."""

    name: StripedName
    seen: frozenset[int]
    """Targets that hold something under its name."""
    valid: frozenset[int]
    """Of those, the ones whose stripe can serve (by name only, where it was not read)."""
    unknown: frozenset[int]
    """Targets that could not say."""
    header: StripeHeader | None
    """A whole stripe's header; None if none was found or looked for."""

    @property
    def damaged(self) -> frozenset[int]:
        return self.seen - self.valid


def survey(num_targets: int, run: str) -> Steps[Survey]:
    """List the run on all targets. NotDurableError when fewer than a majority answer.

    (W, n - W + 1 and hence the read quorum are n // 2 + 1 whatever m is, so this needs no Code.)
    """
    code = Code(num_targets, 0)
    listing = yield from list_everywhere(code, f"{run}/")
    require(f"run {run!r}: listing", listing.keys, code.read_quorum, listing.problems)
    return index_keys(run, num_targets, listing.keys, listing.problems)


def index_keys(
    run: str, num_targets: int, keys: Mapping[int, Iterable[str]], problems: Mapping[int, StoreError]
) -> Survey:
    """Sort the listed keys by what they name. Foreign names are nobody's."""
    starts: defaultdict[StartName, set[int]] = defaultdict(set)
    groups: defaultdict[GroupName, set[int]] = defaultdict(set)
    manifests: defaultdict[BaseName, set[int]] = defaultdict(set)
    marks: defaultdict[tuple[BaseName, BaseMark], set[int]] = defaultdict(set)
    objects: defaultdict[ObjectName, set[int]] = defaultdict(set)
    pins: defaultdict[str, set[int]] = defaultdict(set)
    degraded: set[GroupName] = set()
    floors: set[tuple[StartName, int]] = set()
    holders: set[int] = set()
    claimed = 0
    for target, listed in keys.items():
        for key in listed:
            if (group := paths.parse_group_key(run, key)) is not None:
                if group[1] == target:
                    groups[group[0]].add(target)
            elif (item := paths.parse_object_key(run, key)) is not None:
                if item[1] == target:
                    objects[item[0]].add(target)
            elif (epoch := paths.parse_claim_key(run, key)) is not None:
                claimed = max(claimed, epoch)
            elif (start := paths.parse_start_key(run, key)) is not None:
                starts[start].add(target)
            elif (base := paths.parse_manifest_key(run, key)) is not None:
                manifests[base].add(target)
            elif (mark := paths.parse_mark_key(run, key)) is not None:
                marks[mark].add(target)
            elif (group_name := paths.parse_degraded_key(run, key)) is not None:
                degraded.add(group_name)
            elif (floor := paths.parse_floor_key(run, key)) is not None:
                floors.add(floor)
            elif (pin := paths.parse_pin_key(run, key)) is not None:
                pins[pin].add(target)
            elif key == paths.holder_key(run):
                holders.add(target)
    return Survey(
        run=run,
        num_targets=num_targets,
        problems=problems,
        claimed_epoch=claimed,
        starts=_frozen(starts),
        groups=_frozen(groups),
        degraded=frozenset(degraded),
        manifests=_frozen(manifests),
        marks=_frozen(marks),
        objects=_frozen(objects),
        floors=frozenset(floors),
        pins=_frozen(pins),
        holders=frozenset(holders),
    )


def inspect_headers(code: Code, found: Survey, names: Sequence[StripedName]) -> Steps[dict[StripedName, Payload]]:
    """One whole stripe's header of each payload; all stripes seen count as valid."""
    headers: dict[StripedName, StripeHeader] = {}
    left = {name: sorted(seen_of(found, name)) for name in names}
    while wanted := [(left[name].pop(0), name) for name in names if name not in headers and left[name]]:
        for batch in _batches(wanted, _PAYLOADS_IN_ONE_BATCH):
            answers = yield from read_all([(target, name.key(found.run, target)) for target, name in batch])
            for target, name in batch:
                key = name.key(found.run, target)
                header = _header(answers[target, key], key, code)
                if header is not None:
                    headers[name] = header
    return {
        name: Payload(name, seen_of(found, name), seen_of(found, name), found.unknown, headers.get(name))
        for name in names
    }


def inspect_deeply(code: Code, found: Survey, names: Sequence[StripedName]) -> Steps[dict[StripedName, Payload]]:
    """Read every stripe seen; valid are those that belong to the payload most of them are part of."""
    payloads: dict[StripedName, Payload] = {}
    for batch in _batches(names, _PAYLOADS_IN_ONE_BATCH):
        places = [(target, name.key(found.run, target)) for name in batch for target in seen_of(found, name)]
        answers = yield from read_all(places)
        for name in batch:
            stripes = {target: answers[target, name.key(found.run, target)] for target in seen_of(found, name)}
            payloads[name] = _judge(code, found, name, stripes)
    return payloads


def seen_of(found: Survey, name: StripedName) -> frozenset[int]:
    """Targets that show a stripe of `name`."""
    if isinstance(name, GroupName):
        return found.groups.get(name, frozenset())
    return found.objects.get(name, frozenset())


def _judge(code: Code, found: Survey, name: StripedName, stripes: Mapping[int, bytes | StoreError]) -> Payload:
    versions: defaultdict[StripeHeader, set[int]] = defaultdict(set)
    gone: set[int] = set()
    unknown: set[int] = set(found.unknown)
    for target, answer in stripes.items():
        if isinstance(answer, NotFoundError):
            gone.add(target)
        elif isinstance(answer, StoreError):
            unknown.add(target)
        else:
            header = _header(answer, name.key(found.run, target), code)
            if header is not None:
                versions[replace(header, index=0)].add(target)
    header, valid = max(
        versions.items(),
        key=lambda version: (len(version[1]), version[0].payload_digest),
        default=(None, set()),
    )
    seen = frozenset(stripes) - gone - unknown
    return Payload(name, seen, frozenset(valid), frozenset(unknown), header)


def _header(answer: bytes | StoreError, key: str, code: Code) -> StripeHeader | None:
    if isinstance(answer, StoreError):
        return None
    try:
        return parse_stripe(answer, key, code).header
    except DamagedError:
        return None


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _frozen(sets: Mapping[T, set[int]]) -> dict[T, frozenset[int]]:
    return {key: frozenset(targets) for key, targets in sets.items()}
