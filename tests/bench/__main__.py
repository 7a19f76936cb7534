"""`infra/bin/bench NAME`: run one benchmark and print its table; exit status 1 when a limit does not hold."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.measures import Measure, record, show, write_json

BENCHMARKS = {
    "exactness": "kills at random steps, logs cut at every byte, failing storage: the same bits, or an error",
    "overhead": "what a stored step costs, beside torch.save and DCP",
    "recovery": "how soon training goes on after a killed rank, a killed agent, a frozen rank",
    "replay": "rebuilding a state from its log, beside training it again",
    "scaling": "record, exchange and commit from 1 to 100 million parameters and from 2 to 8 ranks",
    "size": "bytes stored, beside full saves",
    "start": "from the command to the first step",
}
"""A module of this package each, with `run(short: bool) -> list[Measure]`."""


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="infra/bin/bench",
        description="Run one benchmark, print its table; exit status 1 when a limit does not hold.",
        epilog="\n".join(f"{name:<10} {what}" for name, what in BENCHMARKS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=sorted(BENCHMARKS), metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measures there as well")
    parser.add_argument("--record", action="store_true", help="put the table into tests/bench/RESULTS.md")
    parser.add_argument("--short", action="store_true", help="fewer repeats and smaller models: to see that it works")
    chosen = parser.parse_args(words)
    if chosen.json is not None and not chosen.json.resolve().parent.is_dir():
        parser.error(f"--json {chosen.json}: its folder is not there; make it first")
    if chosen.record and chosen.short:
        parser.error("--record takes whole runs only; leave out --short")
    run: Callable[[bool], list[Measure]] = importlib.import_module(f"bench.{chosen.name}").run
    # What runs leave is the benchmark's own, and gone with it.
    with tempfile.TemporaryDirectory(prefix="openclaw-bench-") as folder:
        os.environ["OPENCLAW_HOME"] = folder
        measures = run(chosen.short)
    show(chosen.name, measures)
    if chosen.json is not None:
        write_json(measures, chosen.json)
    if chosen.record:
        record(chosen.name, measures)
    return int(any(one.holds is False for one in measures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
