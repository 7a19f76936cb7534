"""A run as it goes, on the terminal: one live line for the steps, and a line of its own for whatever happens."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.observe.events import Event, EventLog
from openclaw_tasks.observe.narration import narrate
from openclaw_tasks.observe.wording import format_count

_PLAIN_SECONDS = 2.0
_WIDE = 110  # columns of a terminal from which on there is room for a bar


class Face(Protocol):
    """Where lines and progress go."""

    def line(self, level: int, text: str) -> None: ...

    def steps(self, standing: Standing) -> None: ...


class Standing:
    """How far the run is."""

    def __init__(self, job: TrainJob) -> None:
        self.steps = job.steps
        self.stage = "starting"
        self.step = 0
        self.loss: float | None = None
        self.ranks = 0
        self.durable = 0
        self._recent: list[tuple[float, int]] = []

    def take(self, event: Event) -> bool:
        """Book an event; whether the live line changes."""
        match event["kind"]:
            case "attempt-started":
                self.stage, self.step, self.durable = "training", event["resumed_step"], event["resumed_step"]
            case "step":
                self.stage = "training"
                self.step, self.loss, self.ranks = event["step"], event["loss"], event["ranks"]
                self._recent = [*self._recent[-19:], (event["mono"], event["step"])]
            case "durable":
                self.durable = max(self.durable, event["step"])
            case "evaluated":
                self.stage = "evaluated"
            case _:
                return False
        if self.step == self.steps and self.stage == "training":
            self.stage = "proving"
        return True

    @property
    def steps_per_second(self) -> float | None:
        """Over the last twenty steps."""
        if len(self._recent) < 2 or self._recent[-1][0] <= self._recent[0][0]:
            return None
        (begun, first), (ended, last) = self._recent[0], self._recent[-1]
        return (last - first) / (ended - begun)

    def text(self) -> str:
        """loss, speed, ranks, durable step."""
        loss = "–" if self.loss is None else f"{self.loss:.4f}"
        speed = self.steps_per_second
        per_second = "–" if speed is None else f"{speed:.1f}"
        return f"loss {loss}  {per_second} steps/s  {format_count(self.ranks, 'rank')}  durable {self.durable}"


@contextlib.contextmanager
def watch_run(job: TrainJob, events: EventLog) -> Iterator[None]:
    """Show the run on standard error while the body runs."""
    console = Console(stderr=True, highlight=False)
    standing = Standing(job)
    with contextlib.ExitStack() as stack:
        face: Face = _Live(console, job, stack) if console.is_terminal else _Plain(job)

        def show(event: Event) -> None:
            line = narrate(event)
            if line is not None and line[0] >= logging.INFO:
                face.line(*line)
            if standing.take(event):
                face.steps(standing)

        spool = events.listen(show, name="terminal")
        stack.callback(lambda: spool.close(grace_seconds=2.0))
        yield


class _Live:
    """A terminal: a bar that moves."""

    def __init__(self, console: Console, job: TrainJob, stack: contextlib.ExitStack) -> None:
        self._console = console
        columns: list[ProgressColumn] = [
            TimeElapsedColumn(),
            TextColumn("[bold]{task.fields[run]}[/]  {task.fields[stage]:9}"),
            TextColumn("{task.fields[text]}"),
        ]
        if console.width >= _WIDE:
            columns.insert(2, BarColumn(bar_width=24))
        self._bar = Progress(*columns, console=console, transient=True)
        what = f"the Prefect server, {format_count(job.cluster.workers, 'worker')} with torch"
        self._task = self._bar.add_task("", total=job.steps, run=job.run, stage="starting", text=what)
        stack.enter_context(self._bar)

    def line(self, level: int, text: str) -> None:
        style = "red" if level >= logging.ERROR else "yellow" if level >= logging.WARNING else "dim"
        self._console.print(f"  {text}", style=style, markup=False)

    def steps(self, standing: Standing) -> None:
        text = f"{standing.step}/{standing.steps}  {standing.text()}"
        self._bar.update(self._task, completed=standing.step, stage=standing.stage, text=text)


class _Plain:
    """A pipe or a log: a line every few seconds."""

    def __init__(self, job: TrainJob) -> None:
        self._said_at = time.monotonic()
        self._said_stage = ""
        self.line(logging.INFO, f"run {job.run}: starting {format_count(job.cluster.workers, 'worker')}")

    def line(self, level: int, text: str) -> None:
        mark = "!" if level >= logging.WARNING else " "
        print(f"{mark} {text}", file=sys.stderr, flush=True)

    def steps(self, standing: Standing) -> None:
        now = time.monotonic()
        is_end = standing.step == standing.steps and standing.stage != self._said_stage
        if standing.step and (now - self._said_at >= _PLAIN_SECONDS or is_end):
            self._said_at, self._said_stage = now, standing.stage
            print(
                f"  {standing.stage:9} step {standing.step}/{standing.steps}  {standing.text()}",
                file=sys.stderr,
                flush=True,
            )
