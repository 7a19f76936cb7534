"""What every store promises, checked on each kind."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from openclaw_tasks.errors import AlreadyExistsError, NotFoundError, StoreError, TargetLostError
from openclaw_tasks.storage.deadline import DeadlineStore
from openclaw_tasks.storage.file_store import FileStore
from openclaw_tasks.storage.memory_store import MemoryStore
from openclaw_tasks.storage.store import Store, Target


@pytest.fixture(params=["file", "memory", "file with a deadline"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        return MemoryStore()
    store = FileStore(f"file://{tmp_path}")
    return store if request.param == "file" else DeadlineStore(store, 10.0)


@pytest.fixture(params=["file", "memory"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return MemoryStore() if request.param == "memory" else FileStore(f"file://{tmp_path}/a/b")


@pytest.mark.parametrize("data", [b"", b"some bytes", bytearray(b"x" * 100_000), memoryview(b"view")])
def test_what_was_created_is_read_back(store: Store, data: bytes) -> None:
    store.create("lm/log/1-w/1.1-8.0/0", data)
    assert store.read("lm/log/1-w/1.1-8.0/0") == bytes(data)


def test_a_second_create_is_refused_and_changes_nothing(store: Store) -> None:
    store.create("lm/claim/1", b"mine")
    with pytest.raises(AlreadyExistsError, match="claim/1"):
        store.create("lm/claim/1", b"yours")
    assert store.read("lm/claim/1") == b"mine"


def test_one_of_many_concurrent_creators_wins(store: Store) -> None:
    won: list[int] = []

    def create(number: int) -> None:
        try:
            store.create("lm/claim/1", b"%d" % number)
        except AlreadyExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.read("lm/claim/1") == b"%d" % won[0]


def test_replace_puts_new_content_in_place_of_old_or_none(store: Store) -> None:
    store.replace("lm/holder.json", b"one")
    store.replace("lm/holder.json", b"two")
    assert store.read("lm/holder.json") == b"two"
    assert store.list("lm/") == ["lm/holder.json"]


def test_an_absent_key_is_a_definite_answer(store: Store) -> None:
    store.create("lm/claim/1", b"")
    for key in ("lm/claim/2", "lm/claim", "lm/claim/1/x", "other"):
        with pytest.raises(NotFoundError):
            store.read(key)


def test_list_gives_all_keys_below_a_folder_and_no_other(store: Store) -> None:
    keys = ["lm/base/5-1-w.json", "lm/claim/1", "lm/claim/10", "lm/log/1-w/1.1-8.0/0", "lm2/claim/1"]
    for key in reversed(keys):
        store.create(key, b"")
    assert store.list("") == keys
    assert store.list("lm/") == keys[:4]
    assert store.list("lm/claim/") == ["lm/claim/1", "lm/claim/10"]
    assert store.list("nothing/") == []


def test_a_deleted_object_can_be_deleted_and_created_again(store: Store) -> None:
    store.create("lm/pin/a.json", b"1")
    store.delete("lm/pin/a.json")
    store.delete("lm/pin/a.json")
    assert store.list("") == []
    store.create("lm/pin/a.json", b"2")
    assert store.read("lm/pin/a.json") == b"2"


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../outside", "lm/../x", "lm//x", "lm/", "./x", ".tmp-1", "a\0b"])
def test_keys_cannot_leave_the_target_or_hide_in_it(store: Store, key: str) -> None:
    for operation in (
        store.read,
        store.delete,
        lambda k: store.create(k, b""),
        lambda k: store.replace(k, b""),
    ):
        with pytest.raises(ValueError, match="not a relative name"):
            operation(key)


@pytest.mark.parametrize("prefix", ["lm", "/", "../", "lm/../"])
def test_a_prefix_must_be_a_folder_inside_the_target(store: Store, prefix: str) -> None:
    with pytest.raises(ValueError, match="storage"):
        store.list(prefix)


def test_a_bound_target_without_its_identity_is_lost(target: Target) -> None:
    target.make_root()
    target.create("target.json", b"identity")
    target.bind("target.json")
    target.create("lm/claim/1", b"1")
    target.delete("target.json")
    for operation in (
        lambda: target.create("lm/claim/2", b""),
        lambda: target.replace("lm/holder.json", b""),
        lambda: target.delete("lm/claim/1"),
        lambda: target.list(""),
        lambda: target.read("lm/claim/2"),
    ):
        with pytest.raises(TargetLostError, match=r"target\.json"):
            operation()


def test_every_store_error_is_one_line(store: Store) -> None:
    store.create("lm/claim/1", b"")
    with pytest.raises(StoreError) as exists:
        store.create("lm/claim/1", b"")
    with pytest.raises(StoreError) as absent:
        store.read("lm/claim/2")
    assert "\n" not in f"{exists.value}{absent.value}"
