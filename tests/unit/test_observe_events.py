"""The event log: one write a line, read whatever its end, and listeners that cannot hurt."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openclaw_tasks.observe.events import Event, EventLog, events_path, read_events


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_HOME", str(tmp_path / "home"))


@pytest.fixture(name="log")
def _log() -> Iterator[EventLog]:
    log = EventLog("a-run")
    yield log
    log.close()


def test_events_are_read_as_they_were_emitted(log: EventLog) -> None:
    emitted = [
        log.emit("attempt-started", planned_steps=3, resumed_step=0, recipe="m:C", flow_run_id="f"),
        log.emit("step", step=1, loss=np.float32(2.5), items=np.int64(4), members=(1, 2), name="é\n"),
    ]
    read = read_events("a-run")
    assert read == emitted
    assert {"time", "mono", "attempt", "kind"} <= set(read[0])
    assert (read[1]["loss"], read[1]["items"], read[1]["members"], read[1]["name"]) == (2.5, 4, [1, 2], "é\n")
    assert read[0]["mono"] <= read[1]["mono"]
    assert log.num_unwritten == 0


def test_a_log_without_events_leaves_no_file_and_reads_as_none(log: EventLog) -> None:
    assert log.attempt == 1
    assert not events_path("a-run").exists()
    assert read_events("a-run") == []


def test_numbers_that_are_not_finite_are_written_as_null(log: EventLog) -> None:
    log.emit("step", step=1, loss=math.nan, seconds=math.inf, nested=[{"x": -math.inf}])
    line = events_path("a-run").read_text()
    event = json.loads(line, parse_constant=pytest.fail)
    assert (event["loss"], event["seconds"], event["nested"]) == (None, None, [{"x": None}])


def test_each_attempt_counts_on() -> None:
    for attempt in (1, 2, 3):
        log = EventLog("a-run")
        log.emit("step", step=attempt)
        log.close()
        assert log.attempt == attempt
    assert [event["attempt"] for event in read_events("a-run")] == [1, 2, 3]


def test_a_last_line_cut_anywhere_is_ignored_and_does_not_swallow_what_follows() -> None:
    """HarperFast/harper#2016: a torn tail must not end the log, nor hide what is appended behind it."""
    log = EventLog("a-run")
    log.emit("step", step=1)
    log.emit("step", step=2)
    log.close()
    whole = events_path("a-run").read_bytes()
    first_end = whole.index(b"\n") + 1
    for cut in range(first_end, len(whole)):
        events_path("a-run").write_bytes(whole[:cut])
        assert [event["step"] for event in read_events("a-run")] == [1]
        later = EventLog("a-run")
        later.emit("step", step=3)
        later.close()
        expected = [1, 2, 3] if cut == len(whole) - 1 else [1, 3]
        assert [event["step"] for event in read_events("a-run")] == expected


def test_damage_inside_is_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog("a-run")
    for step in (1, 2, 3):
        log.emit("step", step=step)
    log.close()
    lines = events_path("a-run").read_bytes().split(b"\n")
    lines[1:2] = [b"\xff\x00{", b"[1]", b'{"kind": 3}', b"[" * 100_000]
    events_path("a-run").write_bytes(b"\n".join(lines))
    assert [event["step"] for event in read_events("a-run")] == [1, 3]
    assert "4 lines are no events" in caplog.text


def test_emitting_survives_a_disk_that_is_full(caplog: pytest.LogCaptureFixture, log: EventLog) -> None:
    """pytorch/pytorch#10577, for what is only observed: training goes on, the loss is counted."""
    full = EventLog("a-run", path=Path("/dev/full"), attempt=1)
    heard: list[Event] = []
    full.listen(heard.append, name="listener")
    for step in range(5):
        full.emit("step", step=step)
    full.close()
    assert full.num_unwritten == 5
    assert len(heard) == 5
    assert caplog.text.count("/dev/full") == 1


def test_emitting_survives_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a folder")
    log = EventLog("a-run")
    log.emit("step", step=1)
    log.close()
    assert log.num_unwritten == 1
    assert read_events("a-run") == []


def test_events_of_many_threads_keep_their_lines(log: EventLog) -> None:
    def emit(thread: int) -> None:
        for step in range(50):
            log.emit("step", step=step, thread=thread, filling="x" * 2000)

    threads = [threading.Thread(target=emit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = read_events("a-run")
    for number in range(4):
        assert [event["step"] for event in events if event["thread"] == number] == list(range(50))


def test_listeners_hear_their_kinds_in_order(log: EventLog) -> None:
    heard: list[Any] = []
    log.emit("step", step=0)
    log.listen(lambda event: heard.append(event["step"]), name="steps", kinds=["step"])
    for step in range(1, 100):
        log.emit("step", step=step)
        log.emit("durable", step=step)
    (delivery,) = log.close()
    assert heard == list(range(1, 100))
    assert (delivery.delivered, delivery.errors, delivery.unsent) == (99, 0, 0)


def test_the_file_is_not_inherited_by_children(log: EventLog) -> None:
    log.emit("step", step=1)
    opened = [
        int(link.name)
        for link in Path("/proc/self/fd").iterdir()
        if link.is_symlink() and str(link.readlink()) == str(events_path("a-run"))
    ]
    assert opened
    assert not any(map(os.get_inheritable, opened))
