"""A run on five file targets, read back with up to two of them gone or damaged, and never with three."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest
from checkpoint_runs import RUN, check_whole, contents, make_run, objects, opened, put_steps, record, start, urls

from openclaw_tasks.checkpoint.provenance import changes
from openclaw_tasks.checkpoint.reader import RunReader
from openclaw_tasks.errors import DataLossError, NotDurableError, OpenClawError, StoreTimeoutError
from openclaw_tasks.storage.store import Buffer
from openclaw_tasks.storage.targets import TargetSet


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    make_run(folder)
    return folder


@pytest.fixture
def run_folder(finished_run: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    folder = tmp_path / "copy"
    shutil.copytree(finished_run, folder)
    return folder


def stripes(folder: Path, target: int) -> list[Path]:
    """All stripe files of a target."""
    return [
        path
        for path in sorted((folder / f"t{target}").rglob("*"))
        if path.is_file() and path.name.isdigit() and "claim" not in path.parts
    ]


def flip_a_byte(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 0x40
    path.write_bytes(data)


def test_a_run_reads_back_as_it_was_put(finished_run: Path) -> None:
    with RunReader(opened(finished_run), RUN) as reader:
        assert reader.exists
        assert (reader.last_step, reader.identity, reader.warnings) == (10, {"fixed": {"seed": 1}}, [])
        check_whole(reader)
        assert reader.warnings == []


@pytest.mark.parametrize("gone", list(itertools.combinations(range(5), 2)))
def test_any_two_targets_may_be_deleted(run_folder: Path, gone: tuple[int, int]) -> None:
    for target in gone:
        shutil.rmtree(run_folder / f"t{target}")
    with RunReader(opened(run_folder), RUN) as reader:
        check_whole(reader)
        assert [warning.split(" (")[0] for warning in reader.warnings] == [f"target {target}" for target in gone]


@pytest.mark.parametrize("damaged", [(0, 1), (1, 4), (3, 4)])
def test_a_flipped_byte_in_every_stripe_of_two_targets_is_survived(run_folder: Path, damaged: tuple[int, int]) -> None:
    """seaweedfs/seaweedfs#7832: a rotten share decodes without complaint unless digests are checked."""
    for target in damaged:
        for number, path in enumerate(stripes(run_folder, target)):
            flip_a_byte(path, number * 37)
    with RunReader(opened(run_folder), RUN) as reader:
        check_whole(reader)
        told = {warning.split(" (")[0] for warning in reader.warnings}
        assert told >= {f"target {target}" for target in damaged if target < 3}
    with RunReader(opened(run_folder), RUN, deep_bytes=1 << 20) as reader:
        told = {warning.split(" (")[0] for warning in reader.warnings}
        assert told == {f"target {target}" for target in damaged}


def test_three_missing_targets_are_one_clear_error_and_nothing_is_changed(run_folder: Path) -> None:
    for target in (0, 2, 3):
        shutil.rmtree(run_folder / f"t{target}")
    before = contents(run_folder)
    with pytest.raises(DataLossError, match="3 of 5 targets") as caught:
        RunReader(opened(run_folder), RUN)
    assert "\n" not in str(caught.value)
    for target in (0, 2, 3):
        assert f"t{target}" in str(caught.value)
    with pytest.raises((DataLossError, NotDurableError)):
        start(opened(run_folder))
    assert contents(run_folder) == before


@pytest.mark.parametrize("step", [5, 9])
def test_a_group_damaged_on_three_targets_is_an_error_that_names_its_steps(run_folder: Path, step: int) -> None:
    """HarperFast/harper#2016 (b): damage in the middle is never taken for the log's end."""
    for target in (0, 2, 4):
        for path in stripes(run_folder, target):
            if "log" in path.parts and f".{step}-" in path.parent.name:
                flip_a_byte(path, 1000)
    last = min(step + 3, 10)
    with RunReader(opened(run_folder), RUN) as reader, pytest.raises(DataLossError, match=f"steps {step} to {last}"):
        list(reader.records(1, 10))
    with pytest.raises(DataLossError, match=f"steps {step} to {last}"):
        start(opened(run_folder))


def test_steps_deleted_from_three_targets_are_missed_though_nothing_damaged_is_seen(run_folder: Path) -> None:
    """A later group, or what the holder said was durable, shows that the log was longer (harper#2016 b)."""
    for group, missing in (("5-8", "steps 5 to 8"), ("9-10", "steps 9 to 10")):
        folder = run_folder.with_name(f"without-{group}")
        shutil.copytree(run_folder, folder)
        for target in (0, 2, 4):
            for found in list((folder / f"t{target}" / RUN / "log").rglob(f"*.{group}.*")):
                shutil.rmtree(found)
        with pytest.raises(DataLossError, match=missing):
            RunReader(opened(folder), RUN)


def test_a_group_that_was_never_put_whole_is_not_the_history(run_folder: Path) -> None:
    """HarperFast/harper#2016 (a): its putter died; nobody was told it was durable, whatever targets are lost since."""
    targets = opened(run_folder)
    writer = start(targets)
    partly = TargetSet(
        targets.urls, (*targets.stores[:2], None, None, None), targets.uuids, {2: "a", 3: "b", 4: "c"}, frozenset()
    )
    with pytest.raises(NotDurableError):
        put_steps(writer, partly, 14)
    writer.release()
    for target in (0, 4):
        shutil.rmtree(run_folder / f"t{target}")
    with RunReader(opened(run_folder), RUN) as reader:
        assert reader.last_step == 10
    writer = start(opened(run_folder))
    assert writer.durable_step == 10
    put_steps(writer, opened(run_folder), 14)
    writer.release()
    with RunReader(opened(run_folder), RUN) as reader:
        assert [found.to_bytes() for found in reader.records(9, 14)] == [
            record(step).to_bytes() for step in range(9, 15)
        ]


@pytest.mark.parametrize("position", [0, 1, 11, 12, 400, 1500, -1])
def test_a_log_cut_off_at_its_end_is_continued_and_read_through_later(run_folder: Path, position: int) -> None:
    """HarperFast/harper#2016 (a, c): records appended behind a torn tail were never read again."""
    for target in (1, 2):
        tail = next((run_folder / f"t{target}" / RUN / "log").rglob("*.9-10.*/*"))
        tail.write_bytes(tail.read_bytes()[:position])
    for last in (12, 14):
        writer = start(opened(run_folder))
        put_steps(writer, opened(run_folder), last)
        writer.release()
    with RunReader(opened(run_folder), RUN, deep_bytes=1 << 20) as reader:
        check_whole(reader, steps=14)
        assert reader.warnings == []


def test_starts_that_changed_what_the_bits_rest_on_are_named(tmp_path: Path) -> None:
    """One that changed nothing, or put nothing, is none of them."""
    old = {"recipe": "r1", "arithmetic": "a1", "data": "d1"}
    make_run(tmp_path, steps=6, identity={"fingerprints": old})
    for last, change in (
        (9, {}),
        (9, {"data": "unused"}),
        (12, {"recipe": "r2"}),
        (15, {"arithmetic": "a2", "data": "d2"}),
    ):
        old |= change
        targets = opened(tmp_path)
        writer = start(targets, identity={"fingerprints": dict(old)})
        put_steps(writer, targets, last)
        writer.release()
        if last == 9:
            old["data"] = "d1"
    with RunReader(opened(tmp_path), RUN) as reader:
        named = [line.split(" changed before ") for line in changes(reader)]
    assert [(what, rest.split(":")[0]) for what, rest in named] == [
        ("the recipe's source", "step 10"),
        ("the machine's arithmetic and the data", "step 13"),
    ]


@pytest.mark.parametrize("part", ["start", "base", "claim", "holder.json"])
def test_damaged_documents_of_two_targets_are_passed_over(run_folder: Path, part: str) -> None:
    for target in (1, 3):
        for path in (run_folder / f"t{target}" / RUN).rglob("*"):
            if path.is_file() and part in path.parts and not path.name.isdigit():
                flip_a_byte(path, 40)
    with RunReader(opened(run_folder), RUN) as reader:
        check_whole(reader)
    writer = start(opened(run_folder))
    assert writer.durable_step == 10
    writer.release()


def test_order_is_by_number_whatever_files_say_of_their_age(tmp_path: Path) -> None:
    """Lightning-AI/litgpt#661: iter-960000 sorts after iter-1080000; after a copy the times mean nothing."""
    make_run(tmp_path, steps=100, bases=(5, 10, 100))
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    for age, path in enumerate(reversed(files)):
        os.utime(path, (1_000_000 + age, 1_000_000 + age))
    with RunReader(opened(tmp_path), RUN) as reader:
        assert [base.step for base in reader.lineage.bases] == [0, 5, 10, 100]
        assert reader.choose_base().step == 100
        assert reader.choose_base(99).step == 10
        assert reader.choose_base(9).step == 5
        check_whole(reader, steps=100, bases=(0, 5, 10, 100))


def test_a_run_that_enough_targets_do_not_know_does_not_exist(finished_run: Path) -> None:
    with RunReader(opened(finished_run), "other") as reader:
        assert not reader.exists
        assert reader.last_step == 0


class Unwilling:
    """A target that answers everything with an error, as a store that is overloaded, or refuses."""

    def __init__(self, url: str, error: type[OpenClawError]) -> None:
        self.url = url
        self._error = error

    def create(self, key: str, data: Buffer) -> None:
        raise self._error(f"{self.url}: 503")

    replace = create

    def read(self, key: str) -> bytes:
        raise self._error(f"{self.url}: 503")

    def list(self, prefix: str) -> list[str]:
        raise self._error(f"{self.url}: 503")

    def delete(self, key: str) -> None:
        raise self._error(f"{self.url}: 503")

    def sweep_temporaries(self, older_than_seconds: float = 0.0) -> int:
        return 0


def test_cannot_read_is_never_not_there(run_folder: Path) -> None:
    """awslabs/mountpoint-s3#1422: a 503 shown as "not found" makes a run start from scratch."""
    targets = opened(run_folder)
    stores = tuple(
        Unwilling(url, StoreTimeoutError) if i < 3 else targets.stores[i] for i, url in enumerate(urls(run_folder))
    )
    silent = TargetSet(targets.urls, stores, targets.uuids, {}, frozenset())
    before = contents(run_folder)
    with pytest.raises(NotDurableError, match="503"):
        RunReader(silent, RUN)
    with pytest.raises(NotDurableError, match="503"):
        RunReader(silent, "never-trained")
    with pytest.raises(NotDurableError, match="503"):
        start(silent)
    assert contents(run_folder) == before


def test_the_fewest_stripes_with_most_parity_give_the_same_bytes(finished_run: Path) -> None:
    with RunReader(opened(finished_run), RUN) as reader:
        assert [found.to_bytes() for found in reader.records(1, 10, fewest=True)] == [
            record(step).to_bytes() for step in range(1, 11)
        ]
        for base in reader.lineage.bases:
            assert reader.read_base(base, fewest=True)[0] == objects(base.step)


def test_asking_for_steps_that_are_not_kept_is_an_error(finished_run: Path) -> None:
    with RunReader(opened(finished_run), RUN) as reader:
        with pytest.raises(DataLossError, match="steps 9 to 12"):
            list(reader.records(9, 12))
        assert list(reader.records(5, 4)) == []
