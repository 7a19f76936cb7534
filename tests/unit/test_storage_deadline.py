"""Deadlines of storage operations: a target that hangs is given up on, and does not hold anybody."""

from __future__ import annotations

import threading

import pytest

from openclaw_tasks.errors import NotFoundError, StoreTimeoutError
from openclaw_tasks.storage.deadline import MAX_HANGING, Call, DeadlineStore
from openclaw_tasks.storage.memory_store import MemoryStore
from openclaw_tasks.storage.store import Buffer


class StuckStore(MemoryStore):
    """A store whose writes hang while `freed` is not set."""

    def __init__(self) -> None:
        super().__init__("stuck://t0")
        self.freed = threading.Event()
        self.calls = 0

    def create(self, key: str, data: Buffer) -> None:
        self.calls += 1
        assert self.freed.wait(60.0)
        super().create(key, data)


def wait_for_threads() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("storage"):
            thread.join(10.0)


def test_an_operation_that_hangs_ends_at_the_deadline_with_a_line_that_names_it() -> None:
    stuck = StuckStore()
    store = DeadlineStore(stuck, 0.05)
    with pytest.raises(StoreTimeoutError, match=r"^stuck://t0: creating lm/claim/1: no answer within 0.05 s"):
        store.create("lm/claim/1", b"1")
    stuck.freed.set()
    wait_for_threads()


def test_other_operations_go_on_beside_one_that_hangs() -> None:
    stuck = StuckStore()
    store = DeadlineStore(stuck, 0.05)
    with pytest.raises(StoreTimeoutError):
        store.create("lm/claim/1", b"1")
    store.replace("lm/holder.json", b"2")
    assert store.list("") == ["lm/holder.json"]
    stuck.freed.set()
    wait_for_threads()


def test_a_late_create_still_takes_effect_and_is_seen_on_reading_back() -> None:
    """Why a writer that got "already exists", or no answer, reads back and compares."""
    stuck = StuckStore()
    store = DeadlineStore(stuck, 0.05)
    with pytest.raises(StoreTimeoutError):
        store.create("lm/claim/1", b"late")
    stuck.freed.set()
    wait_for_threads()
    assert store.read("lm/claim/1") == b"late"


def test_a_target_with_many_hanging_operations_is_not_asked_again_until_one_returns() -> None:
    """Otherwise a dead mount would gather a thread with each try."""
    stuck = StuckStore()
    store = DeadlineStore(stuck, 0.01)
    for number in range(MAX_HANGING):
        with pytest.raises(StoreTimeoutError, match="no answer"):
            store.create(f"lm/claim/{number}", b"")
    with pytest.raises(StoreTimeoutError, match="not tried"):
        store.create("lm/claim/99", b"")
    assert stuck.calls == MAX_HANGING
    stuck.freed.set()
    wait_for_threads()
    store.replace("lm/holder.json", b"")
    assert len(store.list("lm/claim/")) == MAX_HANGING


def test_errors_of_the_store_come_through_unchanged() -> None:
    with pytest.raises(NotFoundError, match="lm/claim/1"):
        DeadlineStore(MemoryStore(), 10.0).read("lm/claim/1")


def test_a_call_that_hangs_does_not_keep_the_process_alive() -> None:
    freed = threading.Event()
    call = Call(freed.wait, "storage of a dead mount")
    assert not call.wait(0.01)
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "storage of a dead mount")
    assert thread.daemon
    freed.set()
    assert call.wait(10.0)
    assert call.result()
