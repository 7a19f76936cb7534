"""What Prefect still has to send must reach the server before the server may end."""

from __future__ import annotations

from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker

_SECONDS = 5.0


def send_what_waits() -> None:
    """Send the logs and events that Prefect's threads hold. Bounded.

    Else they would be tried at the process's end, for a minute, against a server that is gone.
    """
    APILogWorker.drain_all(timeout=_SECONDS)
    EventsWorker.drain_all(timeout=_SECONDS)
