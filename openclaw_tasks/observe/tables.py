"""The plan, the recoveries and the storage of a run as markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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

_LISTED: Final = 8


def plan_markdown(
    job: TrainJob,
    nodes: Mapping[str, Mapping[str, Any]],
    *,
    resumed_step: int = 0,
    boundaries: Sequence[int] = (),
) -> str:
    """What a run is about to do: its steps, its model, where it runs, and what storage promises.

    `nodes` are the agents' profiles by name; `boundaries` the last steps of the segments that are left.
    """
    rows = [*_plan_rows(job, resumed_step), *_model_rows(nodes)]
    if boundaries:
        rows.insert(2, ("Segments end", f"at step {_listed(boundaries)}; there a base is stored and proven"))
    parts = [f"# Plan of {code(job.run)}\n", markdown_table(("What", "How"), rows)]
    if nodes:
        node_rows = (
            (name, node.get("host"), node.get("device"), node.get("cores"), format_bytes(node.get("memory_bytes")))
            for name, node in nodes.items()
        )
        parts.append(f"## Agents\n\n{markdown_table(('Agent', 'Host', 'Device', 'Cores', 'Memory'), node_rows)}")
    return "\n".join(parts)


def recovery_timeline(events: Iterable[Event]) -> str:
    """What happened to a run beside its steps, in order: starts, faults, losses, recoveries, storage trouble."""
    told = [(event, what) for event in events if (what := _tell(event)) is not None]
    if not told:
        return "# What happened\n\nNothing yet.\n"
    # The UI cuts what is wide: a day that all share stands in the title.
    days = {_clock(event).partition(" ")[0] for event, _ in told}
    day = f"{days.pop()} " if len(days) == 1 else ""
    rows = [(_clock(event).removeprefix(day), whole(event, "attempt"), _step_of(event), *what) for event, what in told]
    title = f"# What happened{f' on {day.strip()}' if day else ''}"
    return f"{title}\n\n{markdown_table(('Time (UTC)', 'Attempt', 'Step', 'What', 'Details'), rows)}"


def storage_table(job: TrainJob, events: Iterable[Event], *, stripes: Mapping[int, int] | None = None) -> str:
    """The targets of a run and their health, and what is kept on them; `stripes` counts them by target."""
    events = list(events)
    problems = _problems(events)
    header = ["Target", "Where", "Health"] + ["Stripes"] * (stripes is not None)
    rows = []
    for index, url in enumerate(job.store.targets):
        problem = problems.get(index)
        if problem is not None:
            problem = redact(problem.removeprefix(url.partition("://")[2]).strip())  # where it is, stands beside it
        row: list[object] = [index, code(redact(url)), "well" if problem is None else f"**{problem}**"]
        rows.append(row + [(stripes or {}).get(index)] * (stripes is not None))
    report = fold_report(events, run=job.run)
    return (
        f"# Storage of {code(job.run)}\n\n{markdown_table(header, rows)}\n"
        f"{_health(job, problems)}\n\n{markdown_table(('What', 'How much'), _kept_rows(report))}"
    )


def _problems(events: Iterable[Event]) -> dict[int | None, str]:
    """What is wrong now, by target; None for what concerns no single one."""
    problems: dict[int | None, str] = {}
    for event in events:
        if event.get("kind") == "attempt-started":
            problems.clear()  # each attempt looks for itself
        elif event.get("kind") == "storage":
            target, problem = whole(event, "target"), text(event, "problem")
            if problem is None:
                problems.pop(target, None)
            else:
                problems[target] = problem
    return problems


def _plan_rows(job: TrainJob, resumed_step: int) -> list[tuple[str, str]]:
    count, lost = len(job.store.targets), job.store.redundancy
    limits = job.fault_tolerance
    todo = max(0, job.steps - resumed_step)
    start = f"from step {resumed_step} on" if resumed_step else "from the beginning"
    per_shard = format_count(job.global_batch // job.logical_shards, "sample")
    return [
        ("Recipe", code(job.recipe)),
        ("Steps", f"{format_count(todo, 'step')} {start}, in segments of {job.segment_steps}"),
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


def _model_rows(nodes: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What the recipe is: on every node the same, or the run does not start."""
    node = next(iter(nodes.values()), {})
    rows = []
    parameters, samples = whole(node, "num_parameters"), whole(node, "samples")
    if parameters is not None:
        full, record = format_bytes(node.get("full_checkpoint_bytes")), format_bytes(node.get("record_bytes"))
        rows.append(("Model", f"{parameters:,} parameters; {full} at first, a step's record up to {record}"))
    if samples is not None:
        rows.append(("Data", f"{samples:,} samples"))
    return rows


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


def _health(job: TrainJob, problems: Mapping[int | None, str]) -> str:
    num_ill = sum(target is not None for target in problems)
    spare = job.store.redundancy - num_ill
    if spare < 0:
        health = f"**{format_count(num_ill, 'target')} not well: more than the redundancy of {job.store.redundancy}.**"
    elif num_ill:
        health = f"{format_count(num_ill, 'target')} not well; {spare} more may be lost."
    else:
        health = f"No target is known to be ill; any {job.store.redundancy} may be lost."
    return health if None not in problems else f"{health}\n\n**{redact(problems[None])}**"


def _tell(event: Event) -> tuple[str, str] | None:
    """What happened, and its details; None of what is no news."""
    teller = _TELLERS.get(text(event, "kind") or "")
    return None if teller is None else teller(event)


def _tell_start(event: Event) -> tuple[str, str]:
    resumed = whole(event, "resumed_step")
    return ("resumed", f"after step {resumed}") if resumed else ("started", "")


def _tell_generation(event: Event) -> tuple[str, str]:
    name, ranks = whole(event, "number"), format_count(whole(event, "ranks"), "rank")
    details = ", ".join(filter(None, (ranks, text(event, "cause"))))
    return f"generation {NOT_KNOWN if name is None else name}", details


def _tell_recovery(event: Event) -> tuple[str, str]:
    detected, recovered = (format_seconds(number(event, f"{name}_seconds")) for name in ("detected", "recovered"))
    lost = format_count(whole(event, "steps_lost"), "step")
    cause = text(event, "cause") or "a loss"
    return "**recovered**", f"in {recovered} (found after {detected}), {lost} lost: {cause}"


def _tell_storage(event: Event) -> tuple[str, str]:
    target, problem = whole(event, "target"), text(event, "problem")
    where = "storage" if target is None else f"target {target}"
    if problem is None:
        return where, "well again"
    return where, redact(problem) if target is None else f"gone: {redact(problem)}"


def _tell_waiting(event: Event) -> tuple[str, str]:
    reason = text(event, "reason")
    return ("goes on", "") if reason is None else ("waits", redact(reason))


def _tell_text(what: str, name: str) -> Callable[[Event], tuple[str, str]]:
    return lambda event: (what, redact(text(event, name) or ""))


_TELLERS: Final[dict[str, Callable[[Event], tuple[str, str]]]] = {
    "attempt-started": _tell_start,
    "generation": _tell_generation,
    "recovery": _tell_recovery,
    "storage": _tell_storage,
    "waiting": _tell_waiting,
    "fault": _tell_text("fault struck", "text"),
    "warning": _tell_text("warning", "text"),
    "agent-lost": _tell_text("agent lost", "reason"),
    "gang-lost": _tell_text("**no rank left**", "cause"),
    "rank-error": _tell_text("**rank failed**", "error"),
    "base-refused": _tell_text("base refused", "reason"),
    "failed": _tell_text("**failed**", "error"),
    "finished": lambda event: ("finished", ""),
}


def _step_of(event: Event) -> int | None:
    steps = (whole(event, name) for name in ("step", "from_step", "final_step"))
    return next((step for step in steps if step is not None), None)


def _clock(event: Event) -> str:
    return (text(event, "time") or "").removesuffix("+00:00").replace("T", " ")


def _listed(numbers: Sequence[int]) -> str:
    """As `20, 40, 60`, with the middle of many left out."""
    if len(numbers) <= _LISTED:
        return ", ".join(map(str, numbers))
    return f"{', '.join(map(str, numbers[: _LISTED - 2]))}, ..., {numbers[-1]}"
