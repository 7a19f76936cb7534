"""Trackers: a user's own code that follows a run, and cannot hurt it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from openclaw_tasks.errors import JobError
from openclaw_tasks.observe.events import Event, EventLog, Kind
from openclaw_tasks.observe.spool import Delivery, Spool


class Tracker:
    """Subclass and override what you want to follow; pass instances to `train(job, trackers=[...])`.

    Each hook takes one read-only mapping, an event as `openclaw_tasks.observe.events` lists them. Hooks run
    in the flow's process, in a thread of this tracker alone, in the order of events, some time after them.
    One that blocks or raises does not hurt the run; OSError (a server that is away) is tried again later.
    """

    def on_run_begin(self, run: Mapping[str, Any]) -> None:
        """An attempt starts: planned_steps, resumed_step, recipe."""

    def on_batch_end(self, metrics: Mapping[str, Any]) -> None:
        """A step is done: step, loss (mean per item), items, seconds, items_per_second, ranks."""

    def on_segment_end(self, segment: Mapping[str, Any]) -> None:
        """A segment is done: step, applied, weights_digest, state_digest."""

    def on_recovery(self, recovery: Mapping[str, Any]) -> None:
        """Training goes on after a loss: step, cause, detected_seconds, recovered_seconds, steps_lost."""

    def on_run_end(self, result: Mapping[str, Any]) -> None:
        """The attempt ends: kind "finished" with final_step and digests, or kind "failed" with error."""


_HOOKS: Final[dict[Kind, str]] = {
    "attempt-started": "on_run_begin",
    "step": "on_batch_end",
    "boundary": "on_segment_end",
    "recovery": "on_recovery",
    "finished": "on_run_end",
    "failed": "on_run_end",
}


class TrackerRunner:
    """Feeds trackers from an event log, each in its own thread with its own bounded spool."""

    def __init__(self, log: EventLog, trackers: Sequence[Tracker], *, capacity: int = 10_000) -> None:
        """Raises JobError for what is no tracker, before any is fed."""
        for tracker in trackers:
            if not isinstance(tracker, Tracker):
                raise JobError(
                    f"trackers: a {type(tracker).__name__} is no Tracker; pass openclaw_tasks.Tracker objects"
                )
        self._log = log
        self._spools: list[Spool] = [
            log.listen(_hooks_of(tracker), name=type(tracker).__name__, kinds=_HOOKS, capacity=capacity)
            for tracker in trackers
        ]

    def close(self, *, grace_seconds: float = 5.0) -> tuple[Delivery, ...]:
        """Give all trackers together `grace_seconds` for what waits, and say what became of their events.

        Also emits one "tracking" event for each that was sent anything.
        """
        for spool in self._spools:  # together, so that one does not use up another's time
            spool.finish(grace_seconds=grace_seconds)
        deliveries = tuple(spool.close(grace_seconds=grace_seconds) for spool in self._spools)
        for delivery in deliveries:
            if not delivery.delivered and not delivery.unsent:
                continue  # a start that was refused leaves no events
            self._log.emit(
                "tracking",
                tracker=delivery.name,
                delivered=delivery.delivered,
                errors=delivery.errors,
                unsent=delivery.unsent,
            )
        return deliveries


def _hooks_of(tracker: Tracker) -> Callable[[Event], None]:
    def call(event: Event) -> None:
        getattr(tracker, _HOOKS[event["kind"]])(MappingProxyType(dict(event)))

    return call
