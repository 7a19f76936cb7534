"""What a benchmark finds: measures with their limits, and how they are shown."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil
from rich import box
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "RESULTS.md"

Value = float | int | str | bool | None


@dataclass(frozen=True, slots=True)
class Measure:
    """One line of a benchmark's table. `holds` is None where nothing is promised."""

    measure: str
    value: Value
    unit: str = ""
    limit: str | None = None
    holds: bool | None = None


def plain(measure: str, value: Value, unit: str = "") -> Measure:
    """A measure without a limit."""
    return Measure(measure, value, unit)


def at_most(measure: str, value: float, limit: float, unit: str = "") -> Measure:
    return Measure(measure, value, unit, f"at most {_text(limit)}", value <= limit)


def at_least(measure: str, value: float, limit: float, unit: str = "") -> Measure:
    return Measure(measure, value, unit, f"at least {_text(limit)}", value >= limit)


def must_be(measure: str, value: Value, wanted: Value, unit: str = "") -> Measure:
    return Measure(measure, value, unit, _text(wanted), value == wanted)


def spread(measure: str, values: Sequence[float], unit: str = "") -> list[Measure]:
    """Least and most beside a median that has a line of its own."""
    return [plain(f"{measure}, least", min(values), unit), plain(f"{measure}, most", max(values), unit)]


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def machine() -> str:
    """What the figures were seen on."""
    import torch

    names = [line.split(":", 1)[1].strip() for line in _cpu_lines() if line.startswith("model name")]
    cpu = names[0] if names else platform.processor() or platform.machine()
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"{len(os.sched_getaffinity(0))} cores of {cpu}, {memory:.0f} GiB memory, Linux {platform.release()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


def show(name: str, measures: Sequence[Measure]) -> None:
    """The table, on standard output."""
    table = Table(title=name, box=box.SIMPLE_HEAD, title_justify="left")
    for column, justify in (("measure", "left"), ("value", "right"), ("unit", "left"), ("limit", "left"), ("", "left")):
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for one in measures:
        table.add_row(one.measure, _text(one.value), one.unit, one.limit or "", _verdict(one))
    # Whole also where standard output is a file.
    console = Console(highlight=False)
    Console(highlight=False, width=max(console.width, 110)).print(table)


def write_json(measures: Sequence[Measure], file: Path) -> None:
    file.write_text(json.dumps([asdict(one) for one in measures], indent=2) + "\n")


def record(name: str, measures: Sequence[Measure]) -> None:
    """Put the table into RESULTS.md, instead of the benchmark's last one."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    rows = [
        f"| {one.measure} | {_text(one.value)} {one.unit} | {one.limit or ''} | {_verdict(one)} |" for one in measures
    ]
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, on {machine()}.",
        "",
        "| measure | value | limit | |",
        "|---|---:|---|---|",
        *rows,
    ]
    section = f"{begin}## {name}\n\n" + "\n".join(lines) + f"\n{end}"
    text = RESULTS.read_text()
    if begin in text:
        before, rest = text.split(begin)
        text = before + section + rest.split(end)[1]
    else:
        text = f"{text.rstrip()}\n\n{section}"
    RESULTS.write_text(text)


def _verdict(one: Measure) -> str:
    return "" if one.holds is None else "holds" if one.holds else "DOES NOT HOLD"


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return "–" if value is None else value


def _cpu_lines() -> list[str]:
    return Path("/proc/cpuinfo").read_text().splitlines()
