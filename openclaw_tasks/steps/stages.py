"""The stages of a training run, as Prefect tasks: load, call, record, return a small reference."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.client.schemas.objects import State, TaskRun
from prefect.runtime import flow_run, task_run
from prefect.tasks import Task

from openclaw_tasks.errors import GangLostError
from openclaw_tasks.gang.session import session_of
from openclaw_tasks.steps import publish
from openclaw_tasks.steps.past_runs import mark_crashed

Nodes = dict[str, dict[str, Any]]


def is_gang_lost(task: Task[..., Any], run: TaskRun, state: State) -> bool:
    """The one failure that a stage's retry can mend: no rank is left, and a fresh gang goes on from storage."""
    return isinstance(state.data, GangLostError) or isinstance(_exception(state), GangLostError)


def _exception(state: State) -> object:
    return state.result(raise_on_failure=False)


@task(name="profile nodes", task_run_name="profile nodes")
def profile_nodes(run: str) -> Nodes:
    """Bring up the agents and learn what each place is: arithmetic, cores, memory, what the recipe is there."""
    session = session_of(run)
    with session.stage("profile_nodes"):
        return session.gang.profile()


@task(name="plan", task_run_name="plan")
def make_plan(run: str, nodes: Nodes) -> list[int]:
    """Claim the run, resume where storage has it; the boundaries that are left to reach or to prove."""
    session = session_of(run)
    with session.stage("plan"):
        session.claim(nodes, flow_run.id, publish.page_of(flow_run.id))
        mark_crashed(run, flow_run.id)
        left = session.boundaries()
        publish.plan(session, nodes, left)
        return left


@task(name="train segment", task_run_name="train to step {step}", retry_delay_seconds=0.2)
def train_segment(run: str, step: int) -> int:
    """Wait until the gang has trained to `step`; after the loss of every rank, start a fresh gang first."""
    session = session_of(run)
    attempt = task_run.run_count or 1
    with session.stage("train_segment", step, attempt):
        session.train_to(step, attempt)
    return step


@task(name="encode checkpoint", task_run_name="base of step {step}")
def encode_checkpoint(run: str, step: int) -> int:
    """Ensure that the base of `step` is in storage."""
    session = session_of(run)
    with session.stage("encode_checkpoint", step):
        session.gang.ensure_base(step)
    return step


@task(name="verify checkpoint", task_run_name="verify step {step}")
def verify_checkpoint(run: str, step: int) -> bool:
    """Prove the base of `step` on an agent's spare process: fewest stripes, replay, the ranks' digest."""
    session = session_of(run)
    with session.stage("verify_checkpoint", step):
        proven = session.prove(step)
    publish.progress(session)
    return proven


@task(name="evaluate", task_run_name="evaluate step {step}")
def evaluate(run: str, step: int) -> dict[str, float]:
    """The recipe's own evaluation of the final state, on an agent's spare process."""
    session = session_of(run)
    with session.stage("evaluate", step):
        metrics: dict[str, float] = session.gang.spare("evaluate", {"step": step})["metrics"]
    if metrics:
        session.events.emit("evaluated", step=step, metrics=metrics)
    return metrics


@task(name="finish", task_run_name="finish")
def finish(run: str) -> dict[str, Any]:
    """All is in storage and proven: book the end of the run."""
    session = session_of(run)
    session.finish()
    publish.progress(session)
    return publish.report(session)
