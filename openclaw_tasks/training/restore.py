"""A state from storage: the newest base at or before a step, and the records after it."""

from __future__ import annotations

from collections.abc import Callable

from openclaw_tasks.checkpoint.reader import RunReader
from openclaw_tasks.checkpoint.replay import rebuild_state
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.errors import DataLossError
from openclaw_tasks.exact.state import TrainState
from openclaw_tasks.storage.targets import open_targets


def restore_state(job: TrainJob, state: TrainState, step: int, *, on_record: Callable[[], None]) -> None:
    """Make `state` what it was after `step`; `on_record` is called as the replay moves.

    Raises DataLossError when storage does not reach that step any more.
    """
    targets = open_targets(job.store.targets, deadline_seconds=job.store.deadline)
    with RunReader(targets, job.run) as reader:
        rebuilt = rebuild_state(reader, state, step, on_record=on_record)
    if rebuilt.step != step:
        raise DataLossError(f"run {job.run!r}: storage gives step {rebuilt.step}, and step {step} was acknowledged")
