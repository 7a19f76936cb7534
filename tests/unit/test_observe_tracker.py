"""Trackers follow a run and cannot hurt it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from openclaw_tasks.errors import JobError
from openclaw_tasks.observe.events import EventLog, read_events
from openclaw_tasks.observe.spool import Spool
from openclaw_tasks.observe.tracker import Tracker, TrackerRunner


@pytest.fixture(name="log")
def _log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EventLog]:
    monkeypatch.setenv("OPENCLAW_HOME", str(tmp_path))
    log = EventLog("a-run")
    yield log
    log.close(grace_seconds=0)


class Recording(Tracker):
    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def on_run_begin(self, run: Mapping[str, Any]) -> None:
        self.heard.append(("begin", run["planned_steps"]))

    def on_batch_end(self, metrics: Mapping[str, Any]) -> None:
        self.heard.append(("batch", metrics["loss"]))

    def on_segment_end(self, segment: Mapping[str, Any]) -> None:
        self.heard.append(("segment", segment["step"]))

    def on_recovery(self, recovery: Mapping[str, Any]) -> None:
        self.heard.append(("recovery", recovery["cause"]))

    def on_run_end(self, result: Mapping[str, Any]) -> None:
        self.heard.append(("end", result["kind"]))


def emit_run(log: EventLog, steps: int = 3) -> None:
    log.emit("attempt-started", planned_steps=steps, resumed_step=0)
    for step in range(1, steps + 1):
        log.emit("step", step=step, loss=1 / step)
    log.emit("recovery", step=2, cause="rank 1 killed")
    log.emit("boundary", step=steps)
    log.emit("durable", step=steps)
    log.emit("finished", final_step=steps)


def test_hooks_are_called_in_the_order_of_events(log: EventLog) -> None:
    tracker = Recording()
    runner = TrackerRunner(log, [tracker, Tracker()])
    emit_run(log)
    first, second = runner.close()
    assert tracker.heard == [
        ("begin", 3),
        ("batch", 1.0),
        ("batch", 0.5),
        ("batch", 1 / 3),
        ("recovery", "rank 1 killed"),
        ("segment", 3),
        ("end", "finished"),
    ]
    assert (first.name, first.delivered, first.errors, first.unsent) == ("Recording", 7, 0, 0)
    assert second.delivered == 7
    tracking = [event for event in read_events("a-run") if event["kind"] == "tracking"]
    assert [(event["tracker"], event["unsent"]) for event in tracking] == [("Recording", 0), ("Tracker", 0)]


@pytest.mark.parametrize("error", [ValueError("a bug"), FileNotFoundError("gone"), SystemExit(3)])
def test_a_hook_that_raises_is_counted_and_logged_once(
    error: BaseException, log: EventLog, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Recording):
        def on_batch_end(self, metrics: Mapping[str, Any]) -> None:
            raise error

    tracker = Broken()
    runner = TrackerRunner(log, [tracker])
    emit_run(log, steps=20)
    (delivery,) = runner.close()
    assert (delivery.delivered, delivery.errors, delivery.unsent) == (4, 20, 20)
    assert tracker.heard[-1] == ("end", "finished")
    assert caplog.text.count(f"Broken raised {type(error).__name__}") == 1


def test_what_a_server_that_is_away_missed_is_sent_when_it_is_back(log: EventLog) -> None:
    """radixark/miles#2571: the tracking server is down for a while; nothing waits, nothing is lost."""
    back = threading.Event()

    class Remote(Recording):
        def on_batch_end(self, metrics: Mapping[str, Any]) -> None:
            if not back.is_set():
                raise ConnectionRefusedError("no server")
            super().on_batch_end(metrics)

    tracker = Remote()
    runner = TrackerRunner(log, [tracker])
    emit_run(log, steps=50)
    back.set()
    (delivery,) = runner.close(grace_seconds=30)
    assert [kind for kind, _ in tracker.heard].count("batch") == 50
    assert delivery.unsent == 0
    assert delivery.errors <= 3


def test_what_stays_unsent_is_said_at_the_end(log: EventLog) -> None:
    """radixark/miles#2571: the end state says how many points are unsent."""

    class Away(Tracker):
        def on_batch_end(self, metrics: Mapping[str, Any]) -> None:
            raise TimeoutError("no answer")

    runner = TrackerRunner(log, [Away()])
    emit_run(log, steps=10)
    (delivery,) = runner.close(grace_seconds=0.3)
    assert delivery.unsent >= 13
    assert delivery.delivered + delivery.unsent == 14
    assert read_events("a-run")[-1]["unsent"] == delivery.unsent


def test_a_hook_that_blocks_for_ever_is_left_behind(log: EventLog) -> None:
    entered, release = threading.Event(), threading.Event()

    class Hanging(Tracker):
        def on_batch_end(self, metrics: Mapping[str, Any]) -> None:
            entered.set()
            release.wait(60)

    other = Recording()
    runner = TrackerRunner(log, [Hanging(), other], capacity=5)
    log.emit("step", step=0, loss=0.0)
    assert entered.wait(30)
    for step in range(1, 21):
        log.emit("step", step=step, loss=0.0)
    hanging, recording = runner.close(grace_seconds=0.5)
    release.set()
    assert hanging.delivered == 0
    assert hanging.unsent == 21
    assert recording.delivered + recording.unsent == 21


def test_hooks_cannot_change_what_others_see(log: EventLog) -> None:
    class Greedy(Tracker):
        def on_batch_end(self, metrics: Mapping[str, Any]) -> None:
            metrics["loss"] = 0  # type: ignore[index]

    tracker = Recording()
    runner = TrackerRunner(log, [Greedy(), tracker])
    emit_run(log)
    greedy, _ = runner.close()
    assert greedy.errors == 3
    assert ("batch", 1.0) in tracker.heard


def test_what_is_no_tracker_is_refused_before_the_run(log: EventLog) -> None:
    with pytest.raises(JobError, match="a object is no Tracker"):
        TrackerRunner(log, [Tracker(), object()])  # type: ignore[list-item]


def test_a_start_that_is_refused_leaves_no_events(log: EventLog) -> None:
    TrackerRunner(log, [Tracker()]).close()
    assert not log.path.exists()


def test_the_oldest_events_give_way_when_the_spool_is_full() -> None:
    gate, entered = threading.Event(), threading.Event()
    heard = []

    def receive(event: Mapping[str, Any]) -> None:
        entered.set()
        gate.wait(60)
        heard.append(event["step"])

    spool = Spool(receive, name="slow", capacity=3)
    spool.offer({"step": 0})
    assert entered.wait(30)
    for step in range(1, 10):
        spool.offer({"step": step})
    gate.set()
    delivery = spool.close(grace_seconds=30)
    assert heard == [0, 7, 8, 9]
    assert (delivery.delivered, delivery.unsent) == (4, 6)
    spool.offer({"step": 10})
    assert spool.close(grace_seconds=0) == delivery


def test_logging_an_error_of_a_tracker_through_itself_does_not_hang(log: EventLog) -> None:
    """A logging handler that emits events would meet the spool's own lock if errors were logged under it."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            log.emit("waiting", reason=record.getMessage())

    class Broken(Tracker):
        def on_batch_end(self, metrics: Mapping[str, Any]) -> None:
            raise ValueError

    handler = Handler()
    logger = logging.getLogger("openclaw_tasks.observe.spool")
    logger.addHandler(handler)
    try:
        runner = TrackerRunner(log, [Broken()])
        emit_run(log)
        (delivery,) = runner.close(grace_seconds=30)
    finally:
        logger.removeHandler(handler)
    assert delivery.errors == 3
