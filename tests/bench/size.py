"""`size`: bytes stored, beside full saves.

The demo's job without Prefect. *Log bytes a step, before parity* are what its report calls log_bytes (compressed
records, and the headers of the data stripes) over its steps; a full save is parameters, buffers and optimizer state,
without any redundancy or file format. *Everything ever written* is every file that appeared on any target from the
first to the last moment of a longer run: log and bases with their parity, documents, and what was deleted since. That
none was overlooked is seen by comparing the data stripes among them with what the report says.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from bench.measures import Measure, at_most, must_be, plain
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.gang.placing import WarmAgents
from openclaw_tasks.gang.plain_run import train_plainly
from openclaw_tasks.observe.events import read_events
from openclaw_tasks.observe.report import Report
from openclaw_tasks.storage.store import TEMPORARY_PREFIX

LOG_LIMITS = {"bf16": 12.0, "int8": 9.0}
LONG_STEPS = 200
_LOOK_SECONDS = 0.1  # far less than the shortest life of a file


def run(short: bool) -> list[Measure]:
    measures: list[Measure] = []
    with tempfile.TemporaryDirectory() as folder, WarmAgents(Path(folder)) as agents:
        for codec, limit in LOG_LIMITS.items():
            steps: dict[str, object] = {"steps": 10} if short else {}
            job = TrainJob.load("demo", {**steps, "run": f"size-{codec}", "codec": codec})
            report = train_plainly(job, agents.placement(job.cluster.workers))
            measures += _log_size(job, report, limit)
        changes = {"steps": 16, "segment_steps": 4} if short else {"steps": LONG_STEPS}
        job = TrainJob.load("demo", {**changes, "run": "size-all"})
        with FileWatch(job.store.targets) as watch:
            report = train_plainly(job, agents.placement(job.cluster.workers))
        measures += _everything(job, report, watch)
    return measures


def _log_size(job: TrainJob, report: Report, limit: float) -> list[Measure]:
    assert report.log_bytes is not None
    assert report.full_checkpoint_bytes is not None
    a_step = report.log_bytes / job.steps
    name = f"{job.codec}, {job.steps} steps"
    return [
        plain(f"{name}: full save", report.full_checkpoint_bytes, "bytes"),
        plain(f"{name}: log, before parity", round(a_step), "bytes a step"),
        at_most(f"{name}: log, before parity", 100 * a_step / report.full_checkpoint_bytes, limit, "% of a full save"),
    ]


def _everything(job: TrainJob, report: Report, watch: FileWatch) -> list[Measure]:
    assert report.log_bytes is not None
    assert report.base_bytes is not None
    assert report.full_checkpoint_bytes is not None
    events = list(read_events(job.run))
    groups = {event["group"] for event in events if event["kind"] == "durable"}
    bases = {event["base"] for event in events if event["kind"] == "base"}
    data_stripes = len(job.store.targets) - job.store.redundancy
    log, base = watch.files("log"), watch.files("base")
    seen_all = _agree(log, data_stripes, report.log_bytes, len(groups)) and _agree(
        base, data_stripes, report.base_bytes, len(bases)
    )
    before_parity = report.log_bytes + report.base_bytes
    full_saves = report.full_checkpoint_bytes * job.steps
    name = f"{job.codec}, {job.steps} steps"
    return [
        plain(f"{name}: log, with parity", sum(file.size_bytes for file in log), "bytes"),
        plain(f"{name}: {len(bases)} bases, with parity", sum(file.size_bytes for file in base), "bytes"),
        plain(f"{name}: everything ever written", watch.total_bytes, "bytes"),
        plain(f"{name}: log and bases, before parity", 100 * before_parity / full_saves, "% of full saves"),
        plain(f"{name}: kept at the end", watch.bytes_there(), "bytes"),
        plain(f"{name}: a full save of each step", full_saves, "bytes"),
        plain(f"{name}: everything ever written", 100 * watch.total_bytes / full_saves, "% of full saves"),
        plain(f"{name}: full saves over everything ever written", full_saves / watch.total_bytes, "times"),
        must_be(f"{name}: every stripe was seen", seen_all, True),
    ]


def _agree(files: Sequence[File], data_stripes: int, told_bytes: int, num_names: int) -> bool:
    """Whether the data stripes are as large as the report says; the last one of each payload is filled up."""
    found = sum(file.size_bytes for file in files if file.path.name in map(str, range(data_stripes)))
    objects = 3  # of a base: parameters, buffers, optimizer
    return told_bytes <= found <= told_bytes + num_names * objects * data_stripes


class File(NamedTuple):
    """A file as it was at one time; documents that are replaced are several."""

    path: Path
    inode: int
    modified_ns: int
    size_bytes: int


class FileWatch:
    """Looks at the targets again and again while its body runs, and keeps what it has ever seen there."""

    def __init__(self, targets: Sequence[str]) -> None:
        self._roots = [Path(url.removeprefix("file://")) for url in targets]
        self._seen: set[File] = set()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="file-watch")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._look()

    @property
    def total_bytes(self) -> int:
        """Of all files there have been."""
        return sum(file.size_bytes for file in self._seen)

    def bytes_there(self) -> int:
        """Of the files that are there now."""
        return sum(file.size_bytes for root in self._roots for file in _files_below(root))

    def files(self, kind: str) -> list[File]:
        """Those of the log, or of the bases."""
        places = [(file, file.path.relative_to(self._root_of(file))) for file in self._seen]
        return [file for file, place in places if place.parts[1:2] == (kind,)]

    def _root_of(self, file: File) -> Path:
        return next(root for root in self._roots if file.path.is_relative_to(root))

    def _watch(self) -> None:
        while not self._ending.wait(_LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        for root in self._roots:
            self._seen.update(_files_below(root))


def _files_below(folder: Path) -> Iterator[File]:
    """The finished files; they and their folders may vanish meanwhile."""
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir():
            yield from _files_below(Path(entry.path))
        elif not entry.name.startswith(TEMPORARY_PREFIX):
            try:
                found = entry.stat()
            except FileNotFoundError:
                continue
            yield File(Path(entry.path), found.st_ino, found.st_mtime_ns, found.st_size)
