"""The stages of a training run without Prefect: for reference runs, tests and benchmarks on a local gang."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from openclaw_tasks.config.faults import Fault
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.errors import GangLostError
from openclaw_tasks.gang.placing import Placement
from openclaw_tasks.gang.session import Session, open_session
from openclaw_tasks.observe.events import EventLog, read_events
from openclaw_tasks.observe.report import Report, fold_report


def train_plainly(
    job: TrainJob,
    placement: Placement,
    *,
    faults: Sequence[Fault] = (),
    prove: bool = True,
    events: EventLog | None = None,
    meanwhile: Callable[[Session], None] = lambda session: None,
) -> Report:
    """Train `job` to its end on the gang that `placement` gives; the report.

    `prove`: verify each boundary, as the flow does. `meanwhile` is called once the ranks have been started. Raises
    what the flow's stages raise.
    """
    log = events or EventLog(job.run)
    # The session ends first: what checks still wait for then never comes, and they hear of it.
    with ThreadPoolExecutor(1, "check") as checker, open_session(job, placement, log, faults) as session:
        session.claim(session.gang.profile(), None)
        meanwhile(session)
        checks = []
        for step in session.boundaries():
            _train_to(session, step)
            checks.append(checker.submit(_check, session, step, prove))
        for check in checks:
            check.result()
        session.finish()
    if events is None:
        log.close()
    return fold_report(read_events(job.run), run=job.run, recipe=job.recipe, planned_steps=job.steps)


def _check(session: Session, step: int, prove: bool) -> None:
    """Beside the next segment: training may have to begin again before the base can be there."""
    session.gang.ensure_base(step)
    if prove:
        session.prove(step)


def _train_to(session: Session, step: int) -> None:
    """The one retry of a gang without Prefect: after the loss of every rank, a fresh gang from storage."""
    for attempt in range(1, session.job.fault_tolerance.max_retries + 1):
        try:
            session.train_to(step, attempt)
        except GangLostError:
            continue
        return
    session.train_to(step, session.job.fault_tolerance.max_retries + 1)
