"""Which groups of an epoch's log are its history: one attempt each, linked by digest. Pure.

A group is put only after the one before it in its epoch was acknowledged, and names that one's digest. So any
stripe of a group proves that the group it names was acknowledged. A group that cannot be rebuilt is dropped only
when it is certain that nobody was told it was durable. An acknowledged one was put whole before the listing:
- with n acknowledgements every target that answers holds a stripe (damaged or not);
- with fewer, max(k, W) targets hold one, and `degraded.json` stood on as many before, so that it is seen.
Neither is so for a group whose putter died half-way, however many targets have been lost since: it is dropped.
Otherwise it is waited for, as long as targets that do not answer could make it whole, or it is data loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.lineage import GroupRef
from openclaw_tasks.checkpoint.paths import GroupName


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at one group, as the targets show it. `ref` is None when no stripe of it is whole."""

    name: GroupName
    ref: GroupRef | None
    seen: frozenset[int]
    valid: frozenset[int]
    unknown: frozenset[int]
    marked: bool

    def is_complete(self, code: Code) -> bool:
        return self.ref is not None and len(self.valid) >= code.k

    def may_be_acknowledged(self, code: Code) -> bool:
        placed = len(self.seen | self.unknown)
        return placed >= code.n or (self.marked and placed >= code.group_quorum)

    def could_return(self, code: Code) -> bool:
        return len(self.valid | self.unknown) >= code.k


@dataclass(frozen=True, slots=True)
class Link:
    """The end of a chain: the next group is `sequence` + 1, begins at `step` + 1 and names `digest`.

    Where retention has deleted what came before, only the step is known: `sequence` and `digest` are None,
    and the next group may also begin earlier.
    """

    sequence: int | None
    step: int
    digest: str | None


@dataclass(frozen=True, slots=True)
class Stuck:
    """Something acknowledged, or perhaps acknowledged, that cannot be rebuilt now. `is_lost`: nor ever."""

    message: str
    is_lost: bool


def follow(after: Link, attempts: Sequence[Attempt], code: Code) -> tuple[list[GroupRef], Stuck | None]:
    """The groups that follow `after`, and what hinders from trusting that these are all."""
    chain = _longest_chain(after, attempts, code)
    end = _link(chain[-1]) if chain else after
    return chain, _find_missing(end, attempts, code)


def _longest_chain(after: Link, attempts: Sequence[Attempt], code: Code) -> list[GroupRef]:
    """Follow complete attempts as far as they go. Of several ends the one that reaches the highest step is taken.

    That may be an attempt which was replaced, or which an agent put on its own after its supervisor's death, not
    knowing of the latest groups: of one epoch all attempts hold the same record of a step.
    """
    reached: dict[Link, list[GroupRef]] = {after: []}
    level = dict(reached)
    while level:
        following: dict[Link, tuple[tuple[int, int], list[GroupRef]]] = {}
        for attempt in attempts:
            ref = attempt.ref
            if ref is None or not attempt.is_complete(code):
                continue
            for link, path in level.items():
                if _follows(ref, link):
                    rank = (len(attempt.valid), -ref.attempt)
                    if _link(ref) not in following or following[_link(ref)][0] < rank:
                        following[_link(ref)] = (rank, [*path, ref])
        level = {link: path for link, (_, path) in following.items()}
        reached.update(level)
    return reached[max(reached, key=lambda link: (link.step, link.sequence or 0, link.digest or ""))]


def _find_missing(end: Link, attempts: Sequence[Attempt], code: Code) -> Stuck | None:
    """Whatever shows that acknowledged steps lie beyond `end`.

    Attempts of one epoch hold the same record of a step, so a step up to the end is there, whichever attempt
    its acknowledgement was of.
    """
    replaced = end.sequence or 0  # the chain's end proves that attempts before its own were not acknowledged
    beyond = [
        attempt
        for attempt in sorted(attempts, key=_name)
        if attempt.name.last > end.step and attempt.name.sequence >= replaced
    ]
    for attempt in beyond:
        if not attempt.is_complete(code) and attempt.may_be_acknowledged(code):
            return _stuck(attempt, code)
    for attempt in beyond:
        if attempt.name.sequence == end.sequence:
            continue  # another attempt than the one that the chain ends with
        if attempt.is_complete(code) or attempt.name.first > end.step + 1:
            return _broken(end, attempt, attempts, code)
    return None


def _follows(ref: GroupRef, link: Link) -> bool:
    if link.sequence is None:
        return ref.first <= link.step + 1 <= ref.last
    return (ref.seq, ref.first, ref.previous) == (link.sequence + 1, link.step + 1, link.digest)


def _name(attempt: Attempt) -> GroupName:
    return attempt.name


def _stuck(attempt: Attempt, code: Code) -> Stuck:
    name = attempt.name
    damaged = sorted(attempt.seen - attempt.valid)
    absent = sorted(set(range(code.n)) - attempt.seen - attempt.unknown)
    detail = (
        f"{len(attempt.valid)} whole stripes of the {code.k} needed; damaged on targets {damaged}, "
        f"absent from {absent}, no answer from {sorted(attempt.unknown)}"
    )
    return Stuck(f"{name.describe()} may have been acknowledged: {detail}", not attempt.could_return(code))


def _broken(end: Link, witness: Attempt, attempts: Sequence[Attempt], code: Code) -> Stuck:
    """`witness` follows a group that is not in the chain."""
    missing = [
        attempt
        for attempt in attempts
        if (end.sequence or 0) <= attempt.name.sequence < witness.name.sequence and not attempt.is_complete(code)
    ]
    unknown = len(witness.unknown)
    could_return = any(attempt.could_return(code) for attempt in missing) or (not missing and unknown >= code.k)
    first, last = end.step + 1, max(end.step + 1, witness.name.first - 1)
    after = "" if end.sequence is None else f" (after group {end.sequence})"
    return Stuck(
        f"steps {first} to {last}{after} cannot be rebuilt, but {witness.name.describe()} follows them",
        not could_return,
    )


def _link(ref: GroupRef) -> Link:
    return Link(ref.seq, ref.last, ref.digest)
