"""What happened in a run, one JSON object a line, over all its attempts: `<home>/runs/<run>/events.jsonl`.

Everything that people see of a run (report, trackers, pictures) is folded from these events; nothing that
training needs is. Each has "time" (ISO 8601, UTC), "mono" (seconds on CLOCK_MONOTONIC), "attempt" (which
start of the command, from 1), "kind", and, by kind:

    kind             fields
    attempt-started  planned_steps, resumed_step (0: from nothing), recipe, flow_run_id, page (its address in the UI)
    generation       number, from_step, ranks (how many), cause, members
    step             step, loss (mean per item), items, seconds, items_per_second, ranks
    decision         step, decision ("apply" or "skip")
    recovery         step, cause, detected_seconds, recovered_seconds, overhead_seconds, steps_lost; and, from the
                     kill like the first two: announced_seconds (the new formation), meshed_seconds (its members),
                     stepped_seconds (its first step was done)
    durable          step (last of the group), log_bytes (of this group), degraded; group (its name: a later
                     event of the same name replaces the earlier, as when a group is repaired)
    base             step, bytes, degraded; base (its name, as for groups)
    boundary         step, weights_digest, state_digest, applied
    verified         step, ok, reason
    storage          target (index), problem (null when it is well again), spare (how many more may be lost)
    waiting          reason (null when it goes on)
    stage            name, segment, seconds, stage_attempt
    fault            text, struck_at (seconds on CLOCK_MONOTONIC)
    tracking         tracker, delivered, errors, unsent
    warning          text
    rank-started     member, agent, pid
    link-broken      member, reason
    agent-lost       agent, reason
    gang-lost        cause
    rank-error       error
    base-refused     step, reason
    evaluated        step, metrics (name to number)
    finished         final_step, weights_digest, state_digest, full_checkpoint_bytes, applied
    failed           error, durable_step

A field whose value is not known is absent or null, never 0; a number that is not finite is written as null.
Steps count from 1. Times of different attempts compare by "time" only: "mono" is of one boot of one machine.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from openclaw_tasks.config.home import run_folder
from openclaw_tasks.observe.spool import Delivery, Spool

logger = logging.getLogger(__name__)

Kind = Literal[
    "attempt-started",
    "generation",
    "step",
    "decision",
    "recovery",
    "durable",
    "base",
    "boundary",
    "verified",
    "storage",
    "waiting",
    "stage",
    "fault",
    "tracking",
    "warning",
    "rank-started",
    "link-broken",
    "agent-lost",
    "gang-lost",
    "rank-error",
    "base-refused",
    "evaluated",
    "finished",
    "failed",
]
Event = Mapping[str, Any]

_COMMON: Final = ("time", "mono", "attempt", "kind")
_TAIL_BYTES: Final = 1 << 16


def events_path(run: str) -> Path:
    """Where the events of `run` are."""
    return run_folder(run) / "events.jsonl"


class EventLog:
    """Appends the events of one attempt of a run, and hands them to listeners. Safe to use from any thread.

    Emitting never raises and never waits for a listener: a full disk or a slow listener costs events, which
    are counted. The file is opened by the first event, so a start that is refused leaves nothing behind.
    """

    def __init__(self, run: str, *, attempt: int | None = None, path: Path | None = None) -> None:
        """`attempt` by default follows the last one in the file."""
        self.run = run
        self.path = events_path(run) if path is None else path
        self.attempt = _last_attempt(self.path) + 1 if attempt is None else attempt
        self.num_unwritten = 0
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._is_torn = False
        self._spools: list[Spool] = []

    def emit(self, kind: Kind, /, **fields: Any) -> Event:
        """Append one event, with the fields that its kind has, and return it as it is written."""
        assert not set(fields) & set(_COMMON), f"{kind}: {_COMMON} are set by the log"
        common = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "mono": time.monotonic(),
            "attempt": self.attempt,
            "kind": kind,
        }
        event: dict[str, Any] = plain({**common, **fields})
        line = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
        with self._lock:
            self._append(line)
            for spool in self._spools:
                spool.offer(event)
        return event

    def listen(
        self,
        listener: Callable[[Event], None],
        *,
        name: str,
        kinds: Collection[Kind] | None = None,
        capacity: int = 10_000,
    ) -> Spool:
        """Hand `listener` every later event (of `kinds`), in order, in a thread of its own.

        It may block or raise: see `Spool` for what then happens. The spool is closed by `close`, or earlier.
        """
        spool = Spool(listener, name=name, kinds=kinds, capacity=capacity)
        with self._lock:
            self._spools.append(spool)
        return spool

    def close(self, *, grace_seconds: float = 5.0) -> tuple[Delivery, ...]:
        """Let listeners end, for at most `grace_seconds` in all, and close the file."""
        with self._lock:
            spools, self._spools = self._spools, []
        for spool in spools:
            spool.finish(grace_seconds=grace_seconds)
        deliveries = tuple(spool.close(grace_seconds=grace_seconds) for spool in spools)
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
        return deliveries

    def _append(self, line: bytes) -> None:
        try:
            if self._descriptor is None:
                self._descriptor = self._open()
            # What an earlier writer, or a full disk, cut short must not swallow this event.
            data = b"\n" + line if self._is_torn else line
            self._is_torn = True
            self._is_torn = os.write(self._descriptor, data) != len(data)
            problem = "disk full" if self._is_torn else None
        except OSError as error:
            problem = error.strerror or type(error).__name__
        if problem is not None:
            self.num_unwritten += 1
            if self.num_unwritten == 1:
                logger.warning("%s: %s; training goes on, its report lacks events", self.path, problem)

    def _open(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size_bytes = os.fstat(descriptor).st_size
        self._is_torn = size_bytes > 0 and os.pread(descriptor, 1, size_bytes - 1) != b"\n"
        return descriptor


def read_events(run: str, *, path: Path | None = None) -> list[dict[str, Any]]:
    """All events of `run`, in the order they were written; none when there is no file.

    A last line that was cut short (its writer died, or is writing) is ignored. Lines elsewhere that are no
    event are skipped, with a warning that says how many.
    """
    path = events_path(run) if path is None else path
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return []
    *lines, _torn = data.split(b"\n")
    events, num_unreadable = _parse_lines(lines)
    if num_unreadable:
        logger.warning("%s: %d lines are no events; skipped", path, num_unreadable)
    return events


def plain(value: Any) -> Any:
    """`value` in plain JSON values: None for numbers that are not finite, lists for tensors and arrays."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=str)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    tolist = getattr(value, "tolist", None)
    return plain(tolist()) if callable(tolist) else str(value)


def _parse_lines(lines: Iterable[bytes]) -> tuple[list[dict[str, Any]], int]:
    events: list[dict[str, Any]] = []
    num_unreadable = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if isinstance(event, dict) and isinstance(event.get("kind"), str):
            events.append(event)
        else:
            num_unreadable += 1
    return events, num_unreadable


def _last_attempt(path: Path) -> int:
    try:
        with path.open("rb") as file:
            size_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(0, size_bytes - _TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return 0
    attempts = [event.get("attempt") for event in _parse_lines(lines)[0]]
    return max((attempt for attempt in attempts if isinstance(attempt, int)), default=0)
