"""Events as lines that people read: what happened, where, at which step, and what happens next."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from openclaw_tasks.observe.events import Event
from openclaw_tasks.observe.wording import format_bytes, format_count, format_seconds

Line = tuple[int, str]  # a logging level and the text


def narrate(event: Event) -> Line | None:
    """The line of an event; None for the many that say nothing new, such as a step."""
    teller = _TELLERS.get(event["kind"])
    return teller(event) if teller is not None else None


def _attempt(event: Event) -> Line:
    page = f"; see {event['page']}" if event.get("page") else ""
    if event["resumed_step"]:
        return logging.INFO, f"goes on after step {event['resumed_step']} of {event['planned_steps']}{page}"
    return logging.INFO, f"starts; {event['planned_steps']} steps planned{page}"


def _generation(event: Event) -> Line:
    ranks = format_count(event["ranks"], "rank")
    match event["cause"]:
        case "start":
            return logging.INFO, f"step {event['from_step']}: {ranks} begin"
        case "join":
            return logging.INFO, f"step {event['from_step']}: a new rank is ready; {ranks} from the next step on"
        case cause:
            goes_on = "goes on" if event["ranks"] == 1 else "go on"
            return logging.WARNING, f"step {event['from_step']}: {cause}; {ranks} {goes_on} at once"


def _recovery(event: Event) -> Line:
    lost = format_count(event["steps_lost"], "step")
    return logging.WARNING, (
        f"step {event['step']}: recovered from '{event['cause']}' in {format_seconds(event['recovered_seconds'])} "
        f"(found after {format_seconds(event['detected_seconds'])}, "
        f"overhead {format_seconds(event['overhead_seconds'])}); {lost} lost"
    )


def _storage(event: Event) -> Line:
    if event.get("target") is None:
        if event["problem"] is None:
            return logging.INFO, "storage: well again"
        return logging.WARNING, f"storage: {event['problem']}; tried again"
    if event["problem"] is None:
        return logging.INFO, f"target {event['target']} is back; what it lacks is put there again"
    text = f"target {event['target']} is gone ({event['problem']}); the others hold all that is needed"
    spare = event.get("spare")
    if spare is not None:
        text += f"; {spare} more may be lost" if spare > 0 else "; no other may be lost until it is back"
    return logging.WARNING, text


def _durable(event: Event) -> Line | None:
    if not event["degraded"]:
        return None
    return logging.DEBUG, f"steps up to {event['step']} are in storage, on fewer targets than the job names"


def _base(event: Event) -> Line:
    note = " on fewer targets than the job names" if event["degraded"] else ""
    return logging.DEBUG, f"base of step {event['step']} is in storage ({format_bytes(event['bytes'])}){note}"


def _verified(event: Event) -> Line:
    if event["ok"]:
        return logging.INFO, f"step {event['step']} is proven: rebuilt from the fewest stripes, same bits"
    return logging.WARNING, f"step {event['step']} is not proven: {event['reason']}"


def _waiting(event: Event) -> Line | None:
    if event["reason"] is None:
        return None
    return logging.WARNING, f"step {event['step']}: {event['reason']}"


def _decision(event: Event) -> Line:
    return logging.WARNING, f"step {event['step']}: the gradient is not finite; the step is skipped"


def _finished(event: Event) -> Line:
    digest = event.get("weights_digest")
    return logging.INFO, f"finished at step {event['final_step']}" + (f"; weights {digest[:16]}…" if digest else "")


def _failed(event: Event) -> Line:
    step = event.get("durable_step")
    stored = f"; all up to step {step} is in storage" if step else ""
    return logging.ERROR, f"ended: {event['error']}{stored}"


_TELLERS: dict[str, Callable[[Any], Line | None]] = {
    "attempt-started": _attempt,
    "generation": _generation,
    "recovery": _recovery,
    "storage": _storage,
    "durable": _durable,
    "base": _base,
    "verified": _verified,
    "waiting": _waiting,
    "decision": _decision,
    "fault": lambda event: (logging.WARNING, f"fault {event['text']} strikes"),
    "warning": lambda event: (logging.WARNING, event["text"]),
    "agent-lost": lambda event: (logging.WARNING, f"agent {event['agent']} is lost: {event['reason']}"),
    "gang-lost": lambda event: (
        logging.WARNING,
        f"no rank is left ({event['cause']})",
    ),
    "base-refused": lambda event: (logging.WARNING, f"base of step {event['step']} is refused: {event['reason']}"),
    "evaluated": lambda event: (
        logging.INFO,
        "evaluated: " + ", ".join(f"{name} {value:.4g}" for name, value in event["metrics"].items()),
    ),
    "finished": _finished,
    "failed": _failed,
}
