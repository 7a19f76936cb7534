"""A directory as a target: what it does when the disk, its root or another process gets in the way."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from openclaw_tasks.errors import AlreadyExistsError, NotFoundError, StoreError, TargetLostError, UsageError
from openclaw_tasks.storage.file_store import FileStore


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "t0"
    path.mkdir()
    return path


@pytest.fixture
def store(root: Path) -> FileStore:
    """A bound target."""
    store = FileStore(f"file://{root}")
    store.create("target.json", b"identity")
    store.bind("target.json")
    return store


def temporaries(root: Path) -> list[Path]:
    return sorted(root.rglob(".tmp-*"))


@pytest.mark.parametrize("url", ["file://runs/t0", "file://", "s3://bucket/t0", "/runs/t0", ""])
def test_only_an_absolute_file_url_is_taken(url: str) -> None:
    with pytest.raises(UsageError, match="absolute path"):
        FileStore(url)


def test_no_temporary_file_is_left_after_any_outcome(store: FileStore, root: Path) -> None:
    store.create("lm/claim/1", b"1")
    store.replace("lm/claim/1", b"2")
    with pytest.raises(AlreadyExistsError):
        store.create("lm/claim/1", b"3")
    assert temporaries(root) == []


def test_a_vanished_root_is_lost_and_not_made_again(store: FileStore, root: Path) -> None:
    shutil.rmtree(root)
    for operation in (
        lambda: store.create("lm/log/1-w/1.1-8.0/0", b"data"),
        lambda: store.replace("lm/holder.json", b"data"),
        lambda: store.read("lm/holder.json"),
        lambda: store.delete("lm/holder.json"),
        lambda: store.list("lm/"),
        store.sweep_temporaries,
    ):
        with pytest.raises(TargetLostError, match="lost"):
            operation()
    assert not root.exists()


def test_an_unbound_store_does_not_make_its_root_either(tmp_path: Path) -> None:
    store = FileStore(f"file://{tmp_path}/none")
    with pytest.raises(TargetLostError):
        store.create("target.json", b"identity")
    assert list(tmp_path.iterdir()) == []


def test_a_replaced_root_is_not_filled(store: FileStore, root: Path) -> None:
    """An empty directory where a disk was unmounted, or a copy put in its place, is another target."""
    moved = root.rename(root.with_name("moved"))
    root.mkdir()
    with pytest.raises(TargetLostError, match="gone"):
        store.create("lm/claim/1", b"1")
    shutil.copy(moved / "target.json", root / "target.json")
    with pytest.raises(TargetLostError, match="another file"):
        store.create("lm/claim/1", b"1")
    assert [path.name for path in root.iterdir()] == ["target.json"]


def test_make_root_makes_missing_folders_and_unmake_root_removes_only_those(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    store = FileStore(f"file://{tmp_path}/there/new/t0")
    store.make_root()
    assert (tmp_path / "there" / "new" / "t0").is_dir()
    assert store.unmake_root() == 2
    assert store.unmake_root() == 0
    assert (tmp_path / "there").is_dir()
    assert list((tmp_path / "there").iterdir()) == []


def test_unmake_root_leaves_a_folder_that_is_in_use(tmp_path: Path) -> None:
    store = FileStore(f"file://{tmp_path}/t0")
    store.make_root()
    store.create("lm/claim/1", b"1")
    assert store.unmake_root() == 0
    assert store.read("lm/claim/1") == b"1"


def test_leftovers_are_hidden_and_swept_by_age(store: FileStore, root: Path) -> None:
    store.create("lm/claim/1", b"1")
    leftovers = [root / ".tmp-1-a", root / "lm" / "claim" / ".tmp-2-b"]
    for path in leftovers:
        path.write_bytes(b"half")
    assert store.list("") == ["lm/claim/1", "target.json"]
    assert store.sweep_temporaries() == 0
    os.utime(leftovers[0], (0, 0))
    assert store.sweep_temporaries() == 1
    assert temporaries(root) == [leftovers[1]]
    assert store.sweep_temporaries(0.0) == 1
    assert store.list("") == ["lm/claim/1", "target.json"]


def test_list_tolerates_folders_that_vanish_under_it(store: FileStore) -> None:
    """Another process deletes, and a writer makes again, what is being listed."""
    store.create("lm/claim/1", b"1")
    stop = threading.Event()

    def churn() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            store.create(f"lm/log/1-w/{number}.1-8.0/0", b"")
            store.delete(f"lm/log/1-w/{number}.1-8.0/0")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(200):
            assert store.list("lm/")[0] == "lm/claim/1"
    finally:
        stop.set()
        thread.join()


def test_creating_survives_folders_that_vanish_under_it(store: FileStore) -> None:
    """Deleting a folder's last object removes the folder, just when somebody else writes into it."""
    errors: list[Exception] = []

    def create_and_delete(name: str) -> None:
        for _ in range(100):
            try:
                store.create(f"lm/pin/{name}.json", b"")
                store.delete(f"lm/pin/{name}.json")
            except StoreError as error:
                errors.append(error)

    threads = [threading.Thread(target=create_and_delete, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert store.list("") == ["target.json"]


def test_a_delete_removes_emptied_folders_but_never_the_root(store: FileStore, root: Path) -> None:
    store.create("lm/log/1-w/1.1-8.0/0", b"")
    store.create("lm/claim/1", b"")
    store.delete("lm/log/1-w/1.1-8.0/0")
    assert sorted(path.name for path in (root / "lm").iterdir()) == ["claim"]
    store.delete("lm/claim/1")
    store.delete("target.json")
    assert root.is_dir()


def test_what_is_no_regular_file_is_no_object(store: FileStore, root: Path) -> None:
    """Reading a pipe that somebody left in a target would hang."""
    os.mkfifo(root / "pipe")
    (root / "dangling").symlink_to(root / "nowhere")
    assert store.list("") == ["target.json"]


def test_an_unwritable_place_is_named_with_its_remedy() -> None:
    store = FileStore("file:///sys")
    with pytest.raises(StoreError, match=r"cannot write /sys/lm.*4 bytes.*are free") as error:
        store.create("lm", b"data")
    assert "right to write" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_device_is_no_target() -> None:
    """/dev/full swallows nothing: pytorch/pytorch#10577 used it as a full disk."""
    with pytest.raises(TargetLostError, match="/dev/full"):
        FileStore("file:///dev/full").create("target.json", b"identity")


def test_a_link_that_was_made_but_reported_as_failed_is_ours(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS repeats a link whose answer was lost, and reports that the name exists."""
    link = os.link

    def link_and_fail(source: Path, name: Path, **options: bool) -> None:
        link(source, name, **options)
        raise FileExistsError(17, "File exists", str(name))

    monkeypatch.setattr(os, "link", link_and_fail)
    store.create("lm/claim/1", b"mine")
    assert store.read("lm/claim/1") == b"mine"


def test_a_file_system_without_hard_links_is_refused(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StoreError, match="must have hard links"):
        store.create("lm/claim/1", b"mine")
    assert store.list("lm/") == []


def test_an_unreadable_answer_is_never_not_there(store: FileStore, root: Path) -> None:
    """awslabs/mountpoint-s3#1422: an error shown as "not found" makes a run start from scratch."""
    (root / "loop").symlink_to(root / "loop")
    with pytest.raises(StoreError, match="symbolic links") as error:
        store.read("loop")
    assert not isinstance(error.value, NotFoundError)
