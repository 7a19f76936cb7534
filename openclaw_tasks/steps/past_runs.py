"""Flow runs of earlier starts whose process died: nobody else tells the server, which shows them Running for ever."""

from __future__ import annotations

import logging
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectException
from prefect.states import Crashed

from openclaw_tasks.observe.events import read_events

logger = logging.getLogger(__name__)

_ENDINGS = ("finished", "failed")


def mark_crashed(run: str, this_flow_run: str | None) -> None:
    """Give the flow runs of earlier starts that died without a word their true state (PrefectHQ/prefect#16746).

    To be called once the run is claimed: then none of them can still be at work. A server that cannot be asked, or
    does not know them, never hurts training.
    """
    died = _silent_ends(run, this_flow_run)
    if not died:
        return
    message = f"its process died; flow run {this_flow_run} goes on with the run"
    try:
        with get_client(sync_client=True) as client:
            for flow_run in died:
                state = client.read_flow_run(flow_run).state
                if state is not None and not state.is_final():
                    client.set_flow_run_state(flow_run, Crashed(message=message), force=True)
    except (httpx.HTTPError, PrefectException) as error:
        logger.warning("the flow runs of earlier starts could not be told Crashed: %s", error)


def _silent_ends(run: str, this_flow_run: str | None) -> list[UUID]:
    """Flow runs of starts that neither finished nor failed."""
    begun: dict[int, str] = {}
    for event in read_events(run):
        if event["kind"] == "attempt-started" and event.get("flow_run_id"):
            begun[event["attempt"]] = event["flow_run_id"]
        elif event["kind"] in _ENDINGS:
            begun.pop(event["attempt"], None)
    return [UUID(flow_run) for flow_run in begun.values() if flow_run != this_flow_run]
