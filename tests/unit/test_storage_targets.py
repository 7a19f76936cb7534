"""Opening a run's targets: identities, first starts that leave nothing behind, and later ones that go on."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from openclaw_tasks.errors import AlreadyExistsError, TargetLostError, TargetUnusableError, UsageError
from openclaw_tasks.storage.digested_json import write_digested
from openclaw_tasks.storage.memory_store import MemoryStore
from openclaw_tasks.storage.store import Buffer, Target
from openclaw_tasks.storage.targets import TargetSet, open_store, open_targets


def urls_below(folder: Path, count: int = 5) -> list[str]:
    return [f"file://{folder}/runs/t{index}" for index in range(count)]


def open_now(urls: Sequence[str], *, create: bool = False, probe: bool = False) -> TargetSet:
    return open_targets(urls, deadline_seconds=10.0, create=create, probe=probe)


def open_memory(targets: Sequence[Target], *, deadline_seconds: float = 10.0, create: bool = False) -> TargetSet:
    """Open stores that are no directories, by the same seam that a further scheme would use."""
    by_url = {target.url: target for target in targets}
    schemes: dict[str, Callable[[str], Target]] = {"memory": by_url.__getitem__}
    urls = [target.url for target in targets]
    return open_targets(urls, deadline_seconds=deadline_seconds, create=create, schemes=schemes)


class OverwritingStore(MemoryStore):
    """Ignores that a key exists, as some object stores ignore If-None-Match."""

    def create(self, key: str, data: Buffer) -> None:
        self.replace(key, data)


class StuckStore(MemoryStore):
    """Hangs on reading until freed."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.freed = threading.Event()

    def read(self, key: str) -> bytes:
        assert self.freed.wait(60.0)
        return super().read(key)


def test_a_first_start_gives_each_target_an_identity_that_later_starts_find(tmp_path: Path) -> None:
    urls = urls_below(tmp_path)
    first = open_now(urls, create=True)
    assert first.problems == {}
    assert len(set(first.uuids)) == 5
    later = open_now(urls, probe=True)
    assert later.uuids == first.uuids
    assert [index for index, _ in later.present()] == [0, 1, 2, 3, 4]
    assert all(store.list("") == ["target.json"] for _, store in later.present())
    identity = json.loads((tmp_path / "runs" / "t3" / "target.json").read_text())
    assert identity.keys() == {"format", "uuid", "index", "digest"}
    assert identity["index"] == 3


def test_without_create_nothing_is_made_and_all_targets_are_blank(tmp_path: Path) -> None:
    targets = open_now(urls_below(tmp_path), probe=True)
    assert targets.blank == frozenset(range(5))
    assert targets.present() == []
    assert list(tmp_path.iterdir()) == []


def test_targets_of_another_run_serve_a_new_one(tmp_path: Path) -> None:
    urls = urls_below(tmp_path)
    first = open_now(urls, create=True)
    first.present()[0][1].create("other/claim/1", b"")
    again = open_now(urls, create=True)
    assert again.uuids == first.uuids
    assert again.present()[0][1].list("") == ["other/claim/1", "target.json"]


def test_a_first_start_refuses_when_one_target_fails_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    urls = [*urls_below(tmp_path, 4), f"file://{tmp_path}/file/t4"]
    with pytest.raises(TargetUnusableError, match=r"needs every target: target 4 \(file://.*/file/t4\)") as error:
        open_now(urls, create=True)
    assert error.value.exit_status == 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_failed_first_start_keeps_targets_that_were_there_before(tmp_path: Path) -> None:
    urls = urls_below(tmp_path, 4)
    before = open_now(urls, create=True)
    with pytest.raises(TargetUnusableError, match="target 4"):
        open_now([*urls, "file:///sys/t4"], create=True)
    assert open_now(urls).uuids == before.uuids


def test_a_later_start_goes_on_without_missing_targets_and_says_which(tmp_path: Path) -> None:
    urls = urls_below(tmp_path)
    first = open_now(urls, create=True)
    shutil.rmtree(tmp_path / "runs" / "t1")
    (tmp_path / "runs" / "t3" / "target.json").unlink()
    later = open_now(urls, probe=True)
    assert later.blank == {1, 3}
    assert later.problems[1].startswith(f"target 1 ({urls[1]}): ")
    assert "target.json does not exist" in later.problems[3]
    assert later.uuids == (first.uuids[0], None, first.uuids[2], None, first.uuids[4])
    assert not (tmp_path / "runs" / "t1").exists()


def test_a_damaged_identity_is_a_problem_and_not_blank(tmp_path: Path) -> None:
    urls = urls_below(tmp_path)
    open_now(urls, create=True)
    path = tmp_path / "runs" / "t2" / "target.json"
    path.write_bytes(path.read_bytes().replace(b'"index":2', b'"index":4'))
    later = open_now(urls)
    assert later.blank == frozenset()
    assert "digest" in later.problems[2]


def test_an_identity_of_a_later_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    urls = urls_below(tmp_path, 1)
    open_now(urls, create=True)
    path = tmp_path / "runs" / "t0" / "target.json"
    path.write_bytes(write_digested({"format": 2, "uuid": "u", "index": 0}))
    with pytest.raises(UsageError, match=r"format 2.*upgrade"):
        open_now(urls)


@pytest.mark.parametrize("second", ["runs/t0", "runs/t0/", "runs/../runs/t0", "link"])
@pytest.mark.parametrize("create", [True, False])
def test_two_urls_of_one_place_are_refused(tmp_path: Path, second: str, create: bool) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "runs" / "t0")
    if not create:
        open_now(urls_below(tmp_path, 1), create=True)
    with pytest.raises(TargetUnusableError, match="one and the same place"):
        open_now([*urls_below(tmp_path, 1), f"file://{tmp_path}/{second}"], create=create)
    assert (tmp_path / "runs").exists() is not create


def test_swapped_targets_are_refused_with_both_places(tmp_path: Path) -> None:
    urls = urls_below(tmp_path)
    open_now(urls, create=True)
    urls[1], urls[2] = urls[2], urls[1]
    with pytest.raises(TargetUnusableError, match=r"t2 stands at place 1 .* created for place 2"):
        open_now(urls)


def test_another_target_in_an_old_ones_place_is_absent(tmp_path: Path) -> None:
    urls = urls_below(tmp_path)
    first = open_now(urls, create=True)
    shutil.rmtree(tmp_path / "runs" / "t2")
    open_now(urls, create=True)
    later = open_targets(urls, deadline_seconds=10.0, known_uuids=first.uuids)
    assert "another target stands there" in later.problems[2]
    assert later.stores[2] is None
    assert later.blank == frozenset()


def test_a_store_that_creates_a_key_twice_is_refused_at_first_start() -> None:
    """rclone and s3rver silently ignore If-None-Match: claims would not hold there."""
    stores = [MemoryStore("memory://t0"), OverwritingStore("memory://t1"), MemoryStore("memory://t2")]
    with pytest.raises(TargetUnusableError, match=r"target 1 .*memory://t1.* created again"):
        open_memory(stores, create=True)
    assert [store.contents() for store in stores] == [{}, {}, {}]


def test_a_target_that_hangs_is_absent_after_one_deadline_for_all() -> None:
    stores = [MemoryStore("memory://t0"), StuckStore("memory://t1"), StuckStore("memory://t2")]
    for store in stores[1:]:
        store.freed.set()
    open_memory(stores, create=True)
    for store in stores[1:]:
        store.freed.clear()
    targets = open_memory(stores, deadline_seconds=0.1)
    for store in stores[1:]:
        store.freed.set()
    assert sorted(targets.problems) == [1, 2]
    assert "no answer within 0.1 s" in targets.problems[1]
    assert targets.blank == frozenset()


def test_a_target_that_answers_after_a_failed_first_start_takes_back_what_it_made() -> None:
    stores = [MemoryStore("memory://t0"), StuckStore("memory://t1")]
    with pytest.raises(TargetUnusableError, match="target 1"):
        open_memory(stores, deadline_seconds=0.1, create=True)
    assert stores[0].contents() == {}
    stores[1].freed.set()
    for thread in threading.enumerate():
        if thread.name.startswith("opening"):
            thread.join(10.0)
    assert stores[1].contents() == {}


def test_an_opened_target_whose_identity_vanishes_is_lost_and_stays_empty(tmp_path: Path) -> None:
    urls = urls_below(tmp_path)
    targets = open_now(urls, create=True)
    shutil.rmtree(tmp_path / "runs" / "t0")
    store = targets.present()[0][1]
    with pytest.raises(TargetLostError, match="t0"):
        store.create("lm/claim/1", b"")
    assert not (tmp_path / "runs" / "t0").exists()


def test_a_store_from_an_opened_target_is_create_only(tmp_path: Path) -> None:
    store = open_now(urls_below(tmp_path), create=True).present()[2][1]
    store.create("lm/claim/1", b"1")
    with pytest.raises(AlreadyExistsError):
        store.create("lm/claim/1", b"1")


@pytest.mark.parametrize("url", ["s3://bucket/t0", "t0", "memory://t0", "://"])
def test_an_unsupported_scheme_names_the_supported_ones(url: str) -> None:
    with pytest.raises(UsageError, match=r"supported: file://"):
        open_store(url)


def test_sweeping_goes_over_all_targets_and_passes_over_lost_ones(tmp_path: Path) -> None:
    urls = urls_below(tmp_path)
    targets = open_now(urls, create=True)
    for index in (1, 2):
        leftover = tmp_path / "runs" / f"t{index}" / ".tmp-1-a"
        leftover.touch()
        os.utime(leftover, (0, 0))
    shutil.rmtree(tmp_path / "runs" / "t1")
    assert targets.sweep_temporaries() == 1
