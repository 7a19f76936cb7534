"""The plan, the recoveries and the storage of a run as markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.config.text import redact
from openclaw_tasks.observe.events import Event
from openclaw_tasks.observe.report import Report, fold_report, number, text, whole
from openclaw_tasks.observe.wording import (
    NOT_KNOWN,
    code,
    format_bytes,
    format_count,
    format_seconds,
    markdown_table,
)

_TOLD: Final = ("attempt-started", "fault", "generation", "recovery", "storage", "waiting", "failed", "finished")


def plan_markdown(
    job: TrainJob,
    *,
    resumed_step: int = 0,
    shards: Sequence[range] = (),
    nodes: Sequence[Mapping[str, Any]] = (),
) -> str:
    """What a run is about to do: its steps, who computes which logical shards, and what storage promises.

    `shards[rank]` are the logical shards of each rank; `nodes` are rows of any measures, by name.
    """
    parts = [f"# Plan of {code(job.run)}\n", markdown_table(("What", "How"), _plan_rows(job, resumed_step))]
    if shards:
        rows = ((rank, _span(owned), len(owned)) for rank, owned in enumerate(shards))
        parts.append(f"## Ranks\n\n{markdown_table(('Rank', 'Logical shards', 'How many'), rows)}")
    if nodes:
        names = list(dict.fromkeys(name for node in nodes for name in node))
        table = markdown_table(names, ([node.get(name) for name in names] for node in nodes))
        parts.append(f"## Nodes\n\n{table}")
    return "\n".join(parts)


def recovery_timeline_markdown(events: Iterable[Event], *, run: str) -> str:
    """What happened to a run beside its steps, in order: starts, faults, losses, recoveries, storage trouble."""
    rows = [
        (_clock(event), whole(event, "attempt"), _step_of(event), *_tell(event))
        for event in events
        if event.get("kind") in _TOLD
    ]
    if not rows:
        return f"# What happened to {code(run)}\n\nNothing yet.\n"
    return f"# What happened to {code(run)}\n\n" + markdown_table(
        ("Time (UTC)", "Attempt", "Step", "What", "Details"), rows
    )


def storage_markdown(job: TrainJob, events: Iterable[Event], *, stripes: Mapping[int, int] | None = None) -> str:
    """The targets of a run and their health, and what is kept on them; `stripes` counts them by target."""
    events = list(events)
    problems: dict[int, str | None] = {}
    for event in events:
        target = whole(event, "target")
        if event.get("kind") == "attempt-started":
            problems.clear()  # each attempt looks for itself
        elif event.get("kind") == "storage" and target is not None:
            problems[target] = text(event, "problem")
    header = ["Target", "Where", "Health"] + ["Stripes"] * (stripes is not None)
    rows = []
    for index, url in enumerate(job.store.targets):
        problem = problems.get(index)
        row: list[object] = [index, code(redact(url)), "well" if problem is None else f"**{redact(problem)}**"]
        rows.append(row + [(stripes or {}).get(index)] * (stripes is not None))
    report = fold_report(events, run=job.run)
    return (
        f"# Storage of {code(job.run)}\n\n{markdown_table(header, rows)}\n"
        f"{_health(job, problems)}\n\n{markdown_table(('What', 'How much'), _kept_rows(report))}"
    )


def _plan_rows(job: TrainJob, resumed_step: int) -> list[tuple[str, str]]:
    count, lost = len(job.store.targets), job.store.redundancy
    limits = job.fault_tolerance
    todo = max(0, job.steps - resumed_step)
    segments = format_count(-(-todo // job.segment_steps), "segment")
    start = f"from step {resumed_step} on" if resumed_step else "from the beginning"
    per_shard = format_count(job.global_batch // job.logical_shards, "sample")
    return [
        ("Recipe", code(job.recipe)),
        ("Steps", f"{format_count(todo, 'step')} {start}, in {segments} of up to {job.segment_steps}"),
        ("Global batch", f"{job.global_batch} samples: {job.logical_shards} logical shards of {per_shard}"),
        ("Ranks", f"{job.cluster.workers}, {format_count(job.threads_per_rank, 'thread')} each"),
        ("Gradients", f"codec {code(job.codec)}, norm clipped to {job.clip_norm or 'nothing'}"),
        ("Storage", f"{count - lost} data and {lost} parity stripes on {count} targets; any {lost} may be lost"),
        ("Records", f"put in groups of {job.store.group_steps} steps, a base after each segment"),
        (
            "At risk",
            f"at most {limits.max_unprotected_steps} steps or {format_bytes(limits.max_unprotected_bytes)}, "
            "with every rank gone; none while one lives",
        ),
    ]


def _kept_rows(report: Report) -> list[tuple[str, str]]:
    saved = NOT_KNOWN
    kept = [size for size in (report.log_bytes, report.base_bytes) if size is not None]
    if kept and report.full_checkpoint_bytes and report.final_step:
        full = report.full_checkpoint_bytes * report.final_step
        saved = f"{100 * (1 - sum(kept) / full):.1f}%"
    degraded = report.degraded_groups
    return [
        ("Durable up to step", NOT_KNOWN if report.durable_step is None else str(report.durable_step)),
        ("Gradient log", format_bytes(report.log_bytes)),
        ("Bases", format_bytes(report.base_bytes)),
        ("One full checkpoint", format_bytes(report.full_checkpoint_bytes)),
        ("Less than a full checkpoint each step", saved),
        ("Degraded groups", NOT_KNOWN if degraded is None else str(degraded)),
        ("Verified at steps", ", ".join(map(str, report.verified_steps)) or NOT_KNOWN),
    ]


def _health(job: TrainJob, problems: Mapping[int, str | None]) -> str:
    num_ill = sum(problem is not None for problem in problems.values())
    spare = job.store.redundancy - num_ill
    if num_ill == 0:
        return f"All targets are well; any {job.store.redundancy} may be lost."
    if spare >= 0:
        return f"{format_count(num_ill, 'target')} not well; {spare} more may be lost."
    return f"**{format_count(num_ill, 'target')} not well: more than the redundancy of {job.store.redundancy}.**"


def _tell(event: Event) -> tuple[str, str]:
    """What happened, and its details."""
    kind = event.get("kind")
    if kind == "attempt-started":
        resumed = whole(event, "resumed_step")
        return ("resumed", f"after step {resumed}") if resumed else ("started", "")
    if kind == "fault":
        return "fault struck", code(text(event, "text") or "")
    if kind == "generation":
        ranks = format_count(whole(event, "ranks"), "rank")
        name = whole(event, "number")
        return f"generation {NOT_KNOWN if name is None else name}", ", ".join(
            filter(None, (ranks, text(event, "cause")))
        )
    if kind == "recovery":
        times = ", ".join(
            f"{name} {format_seconds(number(event, f'{name}_seconds'))}"
            for name in ("detected", "recovered", "overhead")
        )
        lost = format_count(whole(event, "steps_lost"), "step")
        return "**recovered**", f"{text(event, 'cause') or 'a loss'}: {times}; {lost} lost"
    if kind == "storage":
        problem = text(event, "problem")
        return f"target {whole(event, 'target')}", "well again" if problem is None else redact(problem)
    if kind == "waiting":
        reason = text(event, "reason")
        return ("goes on", "") if reason is None else ("waits", reason)
    if kind == "failed":
        return "**failed**", redact(text(event, "error") or "")
    return "finished", f"at step {whole(event, 'final_step')}"


def _step_of(event: Event) -> int | None:
    steps = (whole(event, name) for name in ("step", "from_step", "final_step"))
    return next((step for step in steps if step is not None), None)


def _clock(event: Event) -> str:
    return (text(event, "time") or "").removesuffix("+00:00").replace("T", " ")


def _span(owned: range) -> str:
    if not owned:
        return NOT_KNOWN
    return str(owned[0]) if len(owned) == 1 else f"{owned[0]} to {owned[-1]}"
