"""Random schedules of the product's own commit code over a scripted store: every promise holds in each."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass

from simulation.commit import CODES, run_schedule

from bench.exactness_cores import Cores
from bench.measures import Measure, must_be, plain
from openclaw_tasks.checkpoint.code import Code

_PARTS = 16
_TOLD = {
    "groups": "groups acknowledged",
    "bases": "bases acknowledged",
    "starts": "starts",
    "readings": "readings",
    "crashes": "crashes",
    "lost_targets": "targets lost for ever",
    "losses": "losses told, each of which is one",
}


@dataclass(frozen=True, slots=True)
class Share:
    """Some of one code's schedules."""

    code: Code
    seeds: range


def schedules(cores: Cores, number: int) -> list[Measure]:
    """Anything may die, fail or come too late at any moment; the codes take turns."""
    each = number // len(CODES)
    found = cores.count(_play, [Share(code, range(first, each, _PARTS)) for code in CODES for first in range(_PARTS)])
    return [
        must_be("schedules of the commit code", found["schedules"], number),
        *(plain(f"schedules: {name}", found[key]) for key, name in _TOLD.items()),
        must_be("schedules: silent losses, second histories, any promise broken", found["violations"], 0),
    ]


def _play(share: Share) -> Counter[str]:
    found: Counter[str] = Counter()
    for seed in share.seeds:
        result = run_schedule(seed, share.code)
        found.update(result.counts)
        if result.violation is not None:
            found["violations"] += 1
            print(f"{share.code}, seed {seed}: {result.violation}", file=sys.stderr)
    return found
