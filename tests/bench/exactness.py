"""Exactness at length: kills at random steps, a log cut at every byte, putters that die, schedules of the commit code.

Whatever happens, the bits are those of the undisturbed run, or there is one clear error: never a silent loss, never a
second history. What breaks a promise is told on standard error, with what it takes to see it again.
"""

from __future__ import annotations

from bench.exactness_cores import Cores
from bench.exactness_cuts import cut_logs
from bench.exactness_kills import killed_ranks
from bench.exactness_putters import killed_putters
from bench.exactness_schedules import schedules
from bench.measures import Measure

SEED = 17
KILLS, SCHEDULES = 20, 2000


def run(short: bool) -> list[Measure]:
    """All of it, or a sample of each part."""
    measures = killed_ranks(kills=1 if short else KILLS, seed=SEED)
    with Cores() as cores:
        measures += cut_logs(cores, stride=199 if short else 1)
        measures += killed_putters(cores, stride=40 if short else 1)
        measures += schedules(cores, SCHEDULES // 50 if short else SCHEDULES)
    return measures
