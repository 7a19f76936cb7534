"""When an agent takes its rank for hung: by the rank's own progress, its process's state and its own step times."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from openclaw_tasks.gang.children import FROZEN_SECONDS, Rank, process_state
from openclaw_tasks.training.control import ControlChannel
from openclaw_tasks.training.progress import Phase, ProgressPage

LEASE = 10.0


@pytest.fixture(name="rank")
def _rank() -> Iterator[Rank]:
    """A process that does nothing, and has not moved since it was looked at at 100 s."""
    mine, theirs = ControlChannel.pair()
    with subprocess.Popen(["sleep", "60"]) as process:
        rank = Rank(0, mine, ProgressPage.create(), pid=process.pid)
        rank.progress.enter(Phase.COMPUTING, 1)
        assert rank.stuck_because(100.0, LEASE) is None
        yield rank
        process.kill()
    rank.progress.close()
    mine.close()
    theirs.close()


def stop(rank: Rank) -> None:
    assert rank.pid is not None
    process = rank.pid
    subprocess.run(["kill", f"-{signal.SIGSTOP.value}", str(process)], check=True)
    while process_state(process) != "T":
        time.sleep(0.001)


@pytest.mark.parametrize(("step_seconds", "bound"), [(0.2, FROZEN_SECONDS), (1.5, 4.5)])
def test_a_stopped_process_is_told_of_in_time_to_be_found_within_its_bound(
    rank: Rank, step_seconds: float, bound: float
) -> None:
    """The larger of 2 s and 3 of its step times holds for the supervisor, who hears of it later."""
    rank.progress.took(step_seconds)
    stop(rank)
    assert rank.stuck_because(100.0 + 0.9 * bound, LEASE) is None
    found = rank.stuck_because(100.0 + bound - 0.05, LEASE)
    assert found is not None
    assert found.startswith("frozen: ")


def test_a_stopped_process_that_has_moved_since_is_given_its_time_anew(rank: Rank) -> None:
    rank.progress.took(0.2)
    stop(rank)
    rank.progress.beat()
    assert rank.stuck_because(101.9, LEASE) is None
    assert rank.stuck_because(103.0, LEASE) is None
    assert rank.stuck_because(103.9, LEASE) is not None


def test_a_process_that_only_sleeps_is_given_the_lease_or_ten_of_its_step_times(rank: Rank) -> None:
    rank.progress.took(0.2)
    assert rank.stuck_because(109.9, LEASE) is None
    found = rank.stuck_because(110.0, LEASE)
    assert found is not None
    assert found.startswith("hung: no progress for 10.0 s while computing")
    rank.progress.took(4.2)  # on average 1.4 s now
    assert rank.stuck_because(113.9, LEASE) is None
    assert rank.stuck_because(114.1, LEASE) is not None
