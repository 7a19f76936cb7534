"""The flow `train`: from a job to a trained, stored and proven model, through whatever dies on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.runtime import flow_run

from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.errors import RunCancelledError
from openclaw_tasks.gang.session import begin_session
from openclaw_tasks.steps.cancel import cancelled_state, watch_for_cancel
from openclaw_tasks.steps.stages import (
    encode_checkpoint,
    evaluate,
    finish,
    is_gang_lost,
    make_plan,
    profile_nodes,
    train_segment,
    verify_checkpoint,
)


@flow(name="train", flow_run_name="{job.run}", timeout_seconds=None)
def train(job: TrainJob, faults: list[str] | None = None, accept_new_data: bool = False) -> dict[str, Any] | State[Any]:
    """Train a job, or go on with it where it was; returns the run's report.

    Args:
        job: what to train, on how many workers, and where its checkpoints are kept.
        faults: faults to strike on purpose, such as kill-rank:1@40.
        accept_new_data: go on although the data differ from the last start's.
    """
    try:
        return _train(job, faults or (), accept_new_data)
    except (RunCancelledError, KeyboardInterrupt) as error:
        return cancelled_state(error)


def _train(job: TrainJob, faults: Sequence[str], accept_new_data: bool) -> dict[str, Any]:
    with begin_session(job, faults, accept_new_data) as session, watch_for_cancel(session, flow_run.id):
        session.narrate_to(get_run_logger())
        nodes = profile_nodes(job.run)
        boundaries = make_plan(job.run, nodes)
        checks: list[PrefectFuture[bool]] = []
        train_to = train_segment.with_options(retries=job.fault_tolerance.max_retries, retry_condition_fn=is_gang_lost)
        for step in boundaries:
            train_to(job.run, step)
            base = encode_checkpoint.submit(job.run, step)
            # One proof after the other: they share the spare time of the machines that train.
            after: list[PrefectFuture[Any]] = [base, *checks[-1:]]
            checks.append(verify_checkpoint.submit(job.run, step, wait_for=after, return_state=False))
        for check in checks:
            check.result()
        evaluate(job.run, job.steps)
        return finish(job.run)
