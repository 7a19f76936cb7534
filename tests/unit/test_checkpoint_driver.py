"""The protocol's generators on stores that fail, and the small steps they are made of."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from openclaw_tasks.checkpoint import driver
from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.commit import check_fence
from openclaw_tasks.checkpoint.lineage import BaseRef
from openclaw_tasks.checkpoint.operations import (
    Answer,
    Create,
    Delete,
    List,
    Listing,
    Operation,
    Pause,
    Read,
    Replace,
    Steps,
    Written,
    create_everywhere,
)
from openclaw_tasks.checkpoint.retention import choose_floor, plan_deletions
from openclaw_tasks.errors import (
    AlreadyExistsError,
    FencedError,
    NotDurableError,
    NotFoundError,
    StoreError,
    StoreTimeoutError,
    TargetLostError,
)
from openclaw_tasks.storage.memory_store import MemoryStore
from openclaw_tasks.storage.store import Buffer
from openclaw_tasks.storage.targets import TargetSet


class Troubled(MemoryStore):
    """Raises `error` in place of every answer, while there is one; `does` first, if `after`."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.error: StoreError | None = None
        self.after = False
        self.asked = 0

    def _trouble(self) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error

    def create(self, key: str, data: Buffer) -> None:
        if self.after:
            super().create(key, data)
        self._trouble()
        super().create(key, data)

    def read(self, key: str) -> bytes:
        self._trouble()
        return super().read(key)

    def list(self, prefix: str) -> list[str]:
        self._trouble()
        return super().list(prefix)


def targets_of(*stores: MemoryStore | None) -> TargetSet:
    urls = tuple(f"memory://{index}" for index in range(len(stores)))
    problems = {index: f"target {index} is away" for index, store in enumerate(stores) if store is None}
    return TargetSet(urls, stores, tuple("u" for _ in urls), problems, frozenset(problems))


def yield_once(batch: Sequence[Operation]) -> Steps[list[Answer]]:
    return list((yield batch))


def test_answers_come_in_the_order_of_the_operations_and_errors_are_answers() -> None:
    first, second = MemoryStore("memory://0"), MemoryStore("memory://1")
    batch: list[Operation] = [
        Create(1, "a/1", b"x"),
        Create(0, "a/1", b"y"),
        Read(1, "a/1"),
        Create(1, "a/1", b"z"),
        Replace(0, "a/1", b"w"),
        Read(0, "a/1"),
        List(0, "a/"),
        Delete(1, "a/1"),
        Read(1, "a/1"),
    ]
    answers = driver.run(yield_once(batch), targets_of(first, second))
    assert answers[:3] == [None, None, b"x"]
    assert isinstance(answers[3], AlreadyExistsError)
    assert answers[4:8] == [None, b"w", ["a/1"], None]
    assert isinstance(answers[8], NotFoundError)


def test_an_absent_target_answers_with_why() -> None:
    (answer,) = driver.run(yield_once([Read(1, "a")]), targets_of(MemoryStore("memory://0"), None))
    assert isinstance(answer, TargetLostError)
    assert str(answer) == "target 1 is away"


def test_a_target_that_timed_out_is_not_asked_again_in_the_same_run_and_rests_in_the_next() -> None:
    slow, quick = Troubled("memory://0"), MemoryStore("memory://1")
    slow.error = StoreTimeoutError("no answer")
    targets = targets_of(slow, quick)

    def twice() -> Steps[int]:
        answers = list((yield [List(0, ""), List(0, "a/"), List(1, "")]))
        answers += yield [List(0, ""), List(1, "")]
        return sum(isinstance(answer, StoreTimeoutError) for answer in answers)

    assert driver.run(twice(), targets) == 3
    assert slow.asked == 1
    slow.error = None
    assert isinstance(driver.run(yield_once([List(0, "")]), targets, may_skip=1)[0], StoreTimeoutError)
    assert slow.asked == 1
    assert driver.run(yield_once([List(0, "")]), targets) == [[]]
    assert driver.run(yield_once([List(0, "")]), targets, may_skip=1) == [[]]


def test_targets_are_not_left_out_when_too_few_would_remain() -> None:
    stores = [Troubled(f"memory://{index}") for index in range(3)]
    for store in stores[:2]:
        store.error = StoreTimeoutError("no answer")
    driver.run(yield_once([List(index, "") for index in range(3)]), targets_of(*stores))
    answers = driver.run(yield_once([List(index, "") for index in range(3)]), targets_of(*stores), may_skip=1)
    assert [store.asked for store in stores] == [2, 2, 2]
    assert answers[2] == []


def test_one_slow_target_does_not_hold_up_the_others_operations() -> None:
    """The slow one answers only after it has seen that the quick one was asked."""
    asked = threading.Event()

    class Slow(MemoryStore):
        def list(self, prefix: str) -> list[str]:
            assert asked.wait(30)
            return super().list(prefix)

    class Quick(MemoryStore):
        def list(self, prefix: str) -> list[str]:
            asked.set()
            return super().list(prefix)

    targets = targets_of(Slow("memory://0"), Quick("memory://1"))
    assert driver.run(yield_once([List(0, ""), List(1, "")]), targets) == [[], []]


def test_an_error_that_is_no_stores_answer_reaches_the_caller() -> None:
    class Broken(MemoryStore):
        def list(self, prefix: str) -> list[str]:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        driver.run(yield_once([List(0, "")]), targets_of(Broken("memory://0")))


def test_pauses_are_the_drivers_to_make() -> None:
    seconds: list[float] = []
    assert driver.run(yield_once([Pause(1.5)]), targets_of(), pause=seconds.append) == [None]
    assert seconds == [1.5]


def play(steps: Steps[Any], *batches: Sequence[Answer]) -> Any:
    """Give a generator the answers to one batch after the other; its outcome."""
    next(steps)
    try:
        for answers in batches:
            steps.send(answers)
    except StopIteration as end:
        return end.value
    raise AssertionError("the generator asks for more")


def test_a_lost_answer_to_ones_own_create_is_found_by_reading_back() -> None:
    exists = AlreadyExistsError("exists")
    steps = create_everywhere(Code(3, 1), "run/claim/1", b"mine")
    assert play(steps, [None, exists, exists], [b"mine", b"theirs"]) == Written(frozenset({0, 1}), frozenset({2}), {})


def test_an_error_is_neither_an_acknowledgement_nor_a_lost_race() -> None:
    late = StoreTimeoutError("late")
    written = play(create_everywhere(Code(3, 1), "k", b"x"), [None, late, late])
    assert (written.acked, written.taken, dict(written.problems)) == (frozenset({0}), frozenset(), {1: late, 2: late})


def test_the_fence_needs_enough_targets_that_can_tell() -> None:
    late = StoreTimeoutError("late")
    claims = ["lm/claim/1", "lm/claim/2"]
    assert play(check_fence(Code(5, 2), "lm", 2), [claims, claims, claims, late, late]) is None
    with pytest.raises(NotDurableError, match="3 are needed"):
        play(check_fence(Code(5, 2), "lm", 2), [claims, claims, late, late, late])
    with pytest.raises(FencedError, match="epoch 3"):
        play(check_fence(Code(5, 2), "lm", 2), [claims, ["lm/claim/3"], late, late, late])
    # Numbers are compared, not texts.
    with pytest.raises(FencedError, match="epoch 10"):
        play(check_fence(Code(5, 2), "lm", 9), [["lm/claim/10", "lm/claim/9"], [], [], [], []])


def base(step: int, verified: bool = True) -> BaseRef:
    return BaseRef(epoch=1, writer="w", step=step, verified=verified)


def test_the_floor_is_the_older_of_the_two_newest_verified_bases() -> None:
    assert choose_floor([base(0), base(25), base(50)], 60) == 25
    assert choose_floor([base(0), base(25), base(50)], 49) == 0
    assert choose_floor([base(0), base(25), base(50, verified=False)], 60) == 0
    assert choose_floor([base(0), base(25, verified=False)], 60) is None
    assert choose_floor([base(9), base(100), base(1000)], 2000) == 100


def test_manifests_are_deleted_before_what_they_name_and_nothing_from_the_floor_on() -> None:
    keys = (
        "r/base/0-1-w.json",
        "r/base/0-1-w.verified.json",
        "r/base/0-1-w/params.1/0",
        "r/base/25-1-w.json",
        "r/base/25-1-w/params.1/0",
        "r/log/1-w/1.1-8.1/0",
        "r/log/1-w/3.17-25.1/0",
        "r/log/1-w/3.17-25.1/degraded.json",
        "r/log/1-w/4.24-30.1/0",
        "r/log/2-dead/9.20-25.7/0",
        "r/floor/1-w.0.json",
        "r/floor/1-w.25.json",
        "r/pin/gone.json",
        "r/pin/alive.json",
        "r/claim/1",
        "r/start/1-w.json",
        "r/holder.json",
        "r/foreign",
    )
    batches = plan_deletions("r", Listing({0: keys}, {}), 25, {"gone"})
    assert [operation.key for operation in batches[0]] == ["r/base/0-1-w.json"]
    assert {operation.key for batch in batches[1:] for operation in batch} == {
        "r/base/0-1-w.verified.json",
        "r/base/0-1-w/params.1/0",
        "r/log/1-w/1.1-8.1/0",
        "r/log/1-w/3.17-25.1/0",
        "r/log/1-w/3.17-25.1/degraded.json",
        "r/log/2-dead/9.20-25.7/0",
        "r/floor/1-w.0.json",
        "r/pin/gone.json",
    }
