"""How soon the first step is done after `openclaw train tiny`, with a fresh Prefect server and with one that runs.

Where the time goes is told twice: by the clock, from the command to each landmark, and by the processor, as the
seconds that each kind of process had used when the first step was done. On a machine with few cores the second decides.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from commands import Started, events_of

from bench import start_imports
from bench.measures import Measure, at_most, median, plain, spread
from openclaw_tasks.observe.events import Event

FRESH_LIMIT_SECONDS = 12.0
RUNNING_LIMIT_SECONDS = 4.0
RUN = "tiny"

_KINDS = (  # by a word of the command line; the first that fits
    ("openclaw_tasks.gang.zygote", "zygote, launchers, ranks"),
    ("openclaw_tasks.gang.agent", "agents"),
    ("openclaw_tasks.steps.server_keeper", "server"),
    ("prefect", "server"),
    ("uvicorn", "server"),
    ("multiprocessing", "Dask workers"),
    ("openclaw", "command"),
)
_LANDMARKS = (  # what to call it, and the first event that tells of it
    ("recipe and data are known, and the run is claimed", "attempt-started"),
    ("ranks are forked", "rank-started"),
    ("ranks are built", "generation"),
)


def run(short: bool) -> list[Measure]:
    """Medians of several starts, each of a run of its own."""
    rounds = 1 if short else 5
    with TemporaryDirectory(prefix="openclaw-start-") as folder:
        fresh = [_start(Path(folder) / f"fresh-{number}", RUN) for number in range(rounds)]
        with _running_server(Path(folder) / "running") as home:
            running = [_start(home, f"{RUN}-{number}") for number in range(rounds)]
    return [
        *_measures("fresh server", fresh, FRESH_LIMIT_SECONDS),
        *_measures("running server", running, RUNNING_LIMIT_SECONDS),
        *start_imports.measures(2 if short else start_imports.REPEATS),
    ]


class Start:
    """One start: seconds from the command to the landmarks, and processor seconds by kind of process."""

    def __init__(self, landmarks: dict[str, float], cpu: dict[str, float]) -> None:
        self.landmarks = landmarks
        self.cpu = cpu


def _start(home: Path, name: str) -> Start:
    home.mkdir(exist_ok=True)
    begun = time.monotonic()
    with Started("train", "tiny", "--set", f"run={name}", home=home) as command:
        command.wait_for(lambda: events_of(home, name, "step"), "first step")
        cpu = _cpu_by_kind(command)
        ended = command.end()
    assert ended.status == 0, ended.err
    events = events_of(home, name)
    landmarks = {what: _first(events, kind) - begun for what, kind in _LANDMARKS}
    return Start({**landmarks, "first step": _first(events, "step") - begun}, cpu)


@contextmanager
def _running_server(home: Path) -> Iterator[Path]:
    """A home whose server runs, held by `openclaw ui`."""
    home.mkdir()
    with Started("ui", home=home) as ui:
        ui.wait_for(lambda: "http" in ui.out + ui.err, "server")
        yield home
        ui.process.terminate()
        ui.end()


def _first(events: list[Event], kind: str) -> float:
    return float(next(event["mono"] for event in events if event["kind"] == kind))


def _cpu_by_kind(command: Started) -> dict[str, float]:
    """Processor seconds, those of dead children included."""
    total: defaultdict[str, float] = defaultdict(float)
    for pid in command.pids():
        try:
            process = psutil.Process(pid)
            words = " ".join(process.cmdline())
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        kind = next((kind for word, kind in _KINDS if word in words), "other")
        total[kind] += times.user + times.system + times.children_user + times.children_system
    return dict(total)


def _measures(title: str, starts: list[Start], limit: float) -> list[Measure]:
    totals = [start.landmarks["first step"] for start in starts]
    landmarks = [what for what in starts[0].landmarks if what != "first step"]
    kinds = sorted({kind for start in starts for kind in start.cpu})
    return [
        at_most(f"{title}: first step after, median of {len(starts)}", median(totals), limit, "s"),
        *spread(f"{title}: first step after", totals, "s"),
        *(
            plain(f"{title}: {what} after", median(start.landmarks[what] for start in starts), "s")
            for what in landmarks
        ),
        *(
            plain(f"{title}: processor, {kind}", median(start.cpu.get(kind, 0.0) for start in starts), "s")
            for kind in kinds
        ),
    ]
