"""Storage operations as values: what the protocol's generators ask for, and how they read the answers.

A generator of the protocol yields a batch of operations, gets one answer for each in the same order (the
value, or the StoreError as a value), and returns its outcome or raises. It touches no target itself:
driver.py runs it on real stores, and the simulation in the tests runs the very same generators one operation
at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.errors import AlreadyExistsError, NotDurableError, StoreError
from openclaw_tasks.storage.store import Buffer


@dataclass(frozen=True, slots=True)
class Create:
    """Answered by None; AlreadyExistsError when the key exists, whoever made it."""

    target: int
    key: str
    data: Buffer


@dataclass(frozen=True, slots=True)
class Replace:
    """Answered by None."""

    target: int
    key: str
    data: Buffer


@dataclass(frozen=True, slots=True)
class Read:
    """Answered by bytes."""

    target: int
    key: str


@dataclass(frozen=True, slots=True)
class List:
    """Answered by a list of keys."""

    target: int
    prefix: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Answered by None, also when there is nothing to delete."""

    target: int
    key: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Let time pass; stands alone in its batch. Answered by None."""

    seconds: float


Operation: TypeAlias = Create | Replace | Read | List | Delete | Pause
Answer: TypeAlias = bytes | list[str] | StoreError | None
T = TypeVar("T")
Steps: TypeAlias = Generator[Sequence[Operation], Sequence[Answer], T]


@dataclass(frozen=True, slots=True)
class Listing:
    """Keys by target, and why the other targets did not answer."""

    keys: Mapping[int, tuple[str, ...]]
    problems: Mapping[int, StoreError]


@dataclass(frozen=True, slots=True)
class Written:
    """Outcome of creating one thing on several targets. `taken`: somebody else's stands there."""

    acked: frozenset[int]
    taken: frozenset[int]
    problems: Mapping[int, StoreError]


def list_everywhere(code: Code, prefix: str) -> Steps[Listing]:
    """The keys below `prefix` on every target that answers."""
    answers = yield [List(target, prefix) for target in range(code.n)]
    keys: dict[int, tuple[str, ...]] = {}
    problems: dict[int, StoreError] = {}
    for target, answer in enumerate(answers):
        if isinstance(answer, StoreError):
            problems[target] = answer
        else:
            assert isinstance(answer, list)
            keys[target] = tuple(answer)
    return Listing(keys, problems)


def read_all(wanted: Sequence[tuple[int, str]]) -> Steps[dict[tuple[int, str], bytes | StoreError]]:
    """What stands under each (target, key)."""
    if not wanted:
        return {}
    answers = yield [Read(target, key) for target, key in wanted]
    found: dict[tuple[int, str], bytes | StoreError] = {}
    for place, answer in zip(wanted, answers, strict=True):
        assert isinstance(answer, bytes | StoreError)
        found[place] = answer
    return found


def create_each(
    objects: Mapping[int, tuple[str, Buffer]], *, serves: Callable[[bytes], bool] | None = None
) -> Steps[Written]:
    """Create one object on each target; {target: (key, bytes)}.

    "Already exists" may be our own create whose answer was lost: what stands there is read back, and counts
    when it is the same bytes, or when `serves` says that it does as well.
    """
    if not objects:
        return Written(frozenset(), frozenset(), {})
    targets = list(objects)
    answers = yield [Create(target, *objects[target]) for target in targets]
    acked: set[int] = set()
    taken: set[int] = set()
    problems: dict[int, StoreError] = {}
    doubtful: list[int] = []
    for target, answer in zip(targets, answers, strict=True):
        if isinstance(answer, AlreadyExistsError):
            doubtful.append(target)
        elif isinstance(answer, StoreError):
            problems[target] = answer
        else:
            acked.add(target)
    found = yield from read_all([(target, objects[target][0]) for target in doubtful])
    for target in doubtful:
        answer = found[target, objects[target][0]]
        if isinstance(answer, StoreError):
            problems[target] = answer
        elif answer == objects[target][1] or (serves is not None and serves(answer)):
            acked.add(target)
        else:
            taken.add(target)
    return Written(frozenset(acked), frozenset(taken), problems)


def create_everywhere(
    code: Code, key: str, data: Buffer, *, serves: Callable[[bytes], bool] | None = None
) -> Steps[Written]:
    """Create the same object on all targets."""
    return (yield from create_each(dict.fromkeys(range(code.n), (key, data)), serves=serves))


def require(what: str, acked: Iterable[int], needed: int, problems: Mapping[int, StoreError]) -> None:
    """NotDurableError, saying what each target answered, unless `needed` targets acknowledged `what`."""
    have = len(set(acked))
    if have < needed:
        why = "; ".join(name_problem(target, error) for target, error in sorted(problems.items()))
        raise NotDurableError(f"{what}: {have} targets acknowledged, {needed} are needed ({why or 'no errors'})")


def name_problem(target: int, error: StoreError) -> str:
    """The error, naming the target by its number (as the messages of absent targets do already)."""
    text = str(error)
    return text if text.startswith(f"target {target} ") else f"target {target}: {text}"
