"""A run that is cancelled in the UI ends in order: its step finished, its log flushed, no process left."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectException
from prefect.states import Cancelled

from openclaw_tasks.errors import RunCancelledError
from openclaw_tasks.gang.session import Session

_POLL_SECONDS = 2.0


@contextlib.contextmanager
def watch_for_cancel(session: Session, flow_run_id: str | None) -> Iterator[None]:
    """While the body runs, look for a cancel; the stage that waits then raises RunCancelledError.

    A flow run that a worker started is told by a signal; one that was started by hand is told by nobody, so it looks.
    """
    if flow_run_id is None:
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_watch, args=(session, flow_run_id, done), name="cancel-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(_POLL_SECONDS)


def cancelled_state(error: RunCancelledError | KeyboardInterrupt) -> State[Any]:
    """The state of a flow run that somebody ended on purpose. To be given back when no process of the run is left."""
    return Cancelled(message=str(error) or "interrupted by Ctrl-C")


def _watch(session: Session, flow_run_id: str, done: threading.Event) -> None:
    with get_client(sync_client=True) as client:
        while not done.wait(_POLL_SECONDS):
            try:
                state = client.read_flow_run(UUID(flow_run_id)).state
            except (httpx.HTTPError, PrefectException):
                continue  # a server that is away cancels nothing
            if state is not None and (state.is_cancelling() or state.is_cancelled()):
                session.cancel()
                return
