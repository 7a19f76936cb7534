"""What people see of a run in the Prefect UI: artifacts, made from the event log."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import httpx
from prefect.artifacts import create_markdown_artifact
from prefect.exceptions import PrefectException
from prefect.utilities.urls import url_for

from openclaw_tasks.config.text import redact
from openclaw_tasks.gang.session import Session
from openclaw_tasks.observe import pictures
from openclaw_tasks.observe.events import read_events
from openclaw_tasks.observe.report import fold_report

logger = logging.getLogger(__name__)


def page_of(flow_run_id: str | None) -> str | None:
    """The flow run's page in the Prefect UI."""
    url = url_for("flow-run", obj_id=flow_run_id) if flow_run_id is not None else None
    return redact(url) if url is not None else None


def artifact_key(run: str, what: str) -> str:
    """Prefect's keys hold lower-case letters, digits and dashes only."""
    return re.sub(r"[^a-z0-9]+", "-", f"{run}-{what}".lower()).strip("-")


def plan(session: Session, nodes: dict[str, dict[str, Any]], boundaries: list[int]) -> None:
    """The plan: who computes what, what is guaranteed, what is left to do."""
    text = pictures.plan_markdown(session.job, nodes, resumed_step=session.resumed_step, boundaries=boundaries)
    _publish(lambda: create_markdown_artifact(text, key=artifact_key(session.job.run, "plan"), description="Plan"))


def progress(session: Session) -> None:
    """Loss picture, recovery timeline and storage table as they are now."""
    run = session.job.run
    events = list(read_events(run))
    picture = pictures.picture_markdown(pictures.loss_picture(events, run=run), alt=f"Loss of {run}")
    timeline = pictures.recovery_timeline(events)
    storage = pictures.storage_table(session.job, events)
    _publish(lambda: create_markdown_artifact(picture, key=artifact_key(run, "loss"), description="Loss"))
    _publish(lambda: create_markdown_artifact(timeline, key=artifact_key(run, "recoveries"), description="Recoveries"))
    _publish(lambda: create_markdown_artifact(storage, key=artifact_key(run, "storage"), description="Storage"))


def report(session: Session) -> dict[str, Any]:
    """The run's report, over its whole history."""
    job = session.job
    return fold_report(read_events(job.run), run=job.run, recipe=job.recipe, planned_steps=job.steps).document()


def _publish(make: Callable[[], object]) -> None:
    """A UI that cannot be reached never hurts training."""
    try:
        make()
    except (httpx.HTTPError, PrefectException) as error:
        logger.warning("an artifact could not be published: %s", error)
