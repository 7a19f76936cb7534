"""Faults that a command strikes on purpose, such as `kill-rank:1@40`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast, get_args

from openclaw_tasks.config.text import show, suggest
from openclaw_tasks.errors import JobError

if TYPE_CHECKING:
    from openclaw_tasks.config.job import TrainJob

FaultKind = Literal["kill-rank", "stop-rank", "kill-agent", "delete-target", "kill-flow"]

_KINDS: Final[tuple[str, ...]] = get_args(FaultKind)
_FORM: Final = re.compile(r"([^:@]*)(?::([0-9]{1,9}))?@([0-9]{1,15})", re.ASCII)
_REMEDY: Final = (
    "write kill-rank:RANK@STEP, stop-rank:RANK@STEP, kill-agent:RANK@STEP, delete-target:INDEX@STEP or kill-flow@STEP"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: what is struck, which one of them, and in which step; fires once."""

    kind: FaultKind
    target: int | None
    """Rank as numbered at the start, or index of a storage target; None for the flow."""
    step: int
    """1-based step."""

    def text(self) -> str:
        """The form that `parse_fault` reads."""
        number = "" if self.target is None else f":{self.target}"
        return f"{self.kind}{number}@{self.step}"

    def check(self, job: TrainJob) -> None:
        """Raise JobError unless `job` has such a rank or target, and such a step."""
        if not 1 <= self.step <= job.steps:
            raise JobError(f"fault {self.text()}: no such step; choose one from 1 to steps={job.steps}")
        if self.target is None:
            return
        if self.kind == "delete-target":
            key, count = "store.targets", len(job.store.targets)
        else:
            key, count = "cluster.workers", job.cluster.workers
        if self.target >= count:
            raise JobError(f"fault {self.text()}: no number {self.target}; {key} has {count}, choose 0 to {count - 1}")


def parse_fault(text: str) -> Fault:
    """The fault that `text` names; `Fault.text()` gives the text back. Raises JobError with the remedy."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise JobError(f"fault {show(text)} cannot be read; {_REMEDY}")
    kind, target, step = match.groups()
    if kind not in _KINDS:
        raise JobError(f"fault {show(text)}: unknown kind {show(kind)}; {suggest(kind, _KINDS)}")
    if (target is None) != (kind == "kill-flow"):
        raise JobError(f"fault {show(text)}: {kind} takes {'no' if target else 'a'} number; {_REMEDY}")
    if int(step) < 1:
        raise JobError(f"fault {show(text)}: steps count from 1; {_REMEDY}")
    return Fault(cast(FaultKind, kind), None if target is None else int(target), int(step))


def parse_faults(texts: Iterable[str], job: TrainJob) -> tuple[Fault, ...]:
    """Every fault of `texts`, each checked against `job`. Raises JobError."""
    faults = tuple(parse_fault(text) for text in texts)
    for fault in faults:
        fault.check(job)
    return faults
