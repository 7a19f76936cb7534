"""Putting back what targets lack of a history (generator).

What is put back is byte for byte what stood there (stripes are a pure function of their payload), so doing it
twice, or by a writer that was overtaken meanwhile, changes nothing. A damaged object is replaced in one
operation: deleting it first would leave a moment, and for a writer that dies a state, with less than before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.fetch import fetch
from openclaw_tasks.checkpoint.history import History, KnownBase
from openclaw_tasks.checkpoint.operations import Create, Operation, Replace, Steps, require
from openclaw_tasks.checkpoint.stripes import build_stripes
from openclaw_tasks.checkpoint.survey import Payload
from openclaw_tasks.errors import AlreadyExistsError, StoreError
from openclaw_tasks.storage.store import Buffer


@dataclass(frozen=True, slots=True)
class _Placing:
    """What is to stand on one target, and whether something else stands there now."""

    target: int
    key: str
    data: Buffer
    is_damaged: bool


def repair(history: History) -> Steps[int]:
    """Put every stripe and manifest of the history onto every target that answers; the number put.

    DataLossError when something cannot be rebuilt. NotDurableError when fewer than max(k, W) targets hold a
    payload in the end, or fewer than W a manifest.
    """
    put = 0
    digests = [ref.digest for ref in history.lineage.groups if ref.last > history.lineage.floor]
    for payload, digest in zip(history.groups, digests, strict=True):
        put += yield from _repair_payload(history, payload, digest)
    for base in history.bases:
        for payload, entry in zip(base.objects, base.manifest.objects, strict=True):
            put += yield from _repair_payload(history, payload, entry.payload_digest)
        put += yield from _repair_manifest(history, base)
    return put


def _repair_payload(history: History, payload: Payload, digest: str) -> Steps[int]:
    code, run, name = history.code, history.survey.run, payload.name
    lacking = sorted(set(range(code.n)) - payload.unknown - payload.valid)
    if not lacking:
        _require_payload(code, run, payload, payload.valid, {})
        return 0
    fetched = yield from fetch(code, run, name, digest, sorted(payload.valid))
    stripes = build_stripes(fetched.rebuilt.payload, code, fetched.rebuilt.header.identity)
    damaged = payload.damaged | fetched.rebuilt.bad.keys() & payload.seen
    lacking = sorted({*lacking, *(fetched.rebuilt.bad.keys() - fetched.silent)})
    placings = [_Placing(target, name.key(run, target), stripes[target], target in damaged) for target in lacking]
    done, problems = yield from _place(placings)
    held = (payload.valid - set(lacking)) | done
    _require_payload(code, run, payload, held, problems)
    return len(done)


def _repair_manifest(history: History, base: KnownBase) -> Steps[int]:
    code, found, name = history.code, history.survey, base.manifest.name
    data, key = base.manifest.to_bytes(), base.manifest.key
    held = base.copies | base.other_copies
    standing = found.manifests.get(name, frozenset())
    placings = [_Placing(target, key, data, target in standing) for target in sorted(found.answered - held)]
    done, problems = yield from _place(placings)
    require(f"run {found.run!r}: repair of {key}", held | done, code.write_quorum, problems)
    return len(done)


def _place(placings: Iterable[_Placing]) -> Steps[tuple[set[int], dict[int, StoreError]]]:
    """Put each object; the targets where it stands now, and why it does not elsewhere."""
    placings = list(placings)
    done: set[int] = set()
    problems: dict[int, StoreError] = {}
    if not placings:
        return done, problems
    batch: list[Operation] = [
        Replace(placing.target, placing.key, placing.data)
        if placing.is_damaged
        else Create(placing.target, placing.key, placing.data)
        for placing in placings
    ]
    answers = yield batch
    for placing, answer in zip(placings, answers, strict=True):
        if isinstance(answer, StoreError) and not isinstance(answer, AlreadyExistsError):
            problems[placing.target] = answer
        else:
            # What exists already is a lost answer of ours, or what another repair put: the same bytes.
            done.add(placing.target)
    return done, problems


def _require_payload(
    code: Code, run: str, payload: Payload, held: Iterable[int], problems: dict[int, StoreError]
) -> None:
    require(f"run {run!r}: repair of {payload.name.describe()}", held, code.group_quorum, problems)
