"""Many runs, one after the other, each with its kill: nothing grows."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest
from gang_runs import ROUNDS, WAIT_SECONDS, GangRuns, Scene, assert_exact

pytestmark = pytest.mark.chaos

CYCLES = 5 if ROUNDS == 1 else 20
SLOWLY = {"pause_seconds": 0.001}
SETTLE_SECONDS = 0.3  # agents take a gang down after its run has returned: what stands so long is what stays

Holdings = list[dict[str, int]]


def holdings(pid: int) -> dict[str, int]:
    """What a process holds that would grow with a leak."""
    process = psutil.Process(pid)
    return {
        "threads": process.num_threads(),
        "files": process.num_fds(),
        "processes": len(process.children(recursive=True)),
    }


def settled_holdings(gang: GangRuns) -> Holdings:
    """Of this process, of the warm agents and of their launchers, once they do not change any more."""
    deadline = time.monotonic() + WAIT_SECONDS
    found: Holdings = []
    since = time.monotonic()
    while time.monotonic() - since < SETTLE_SECONDS:
        assert time.monotonic() < deadline, f"still changing: {found}"
        agents = gang.agents.pids()
        launchers = [child.pid for child in psutil.Process(gang.agents.zygote_pid).children()]
        now = [holdings(pid) for pid in (os.getpid(), *agents, *launchers)]
        if now != found:
            found, since = now, time.monotonic()
        time.sleep(0.02)
    return found


def test_run_and_kill_cycles_leave_everything_flat(gang: GangRuns) -> None:
    """RolnickLab/ami-data-companion#140: processes, descriptors, shared memory are the same after each cycle."""

    def kill(scene: Scene) -> None:
        scene.wait("step", step=3)
        scene.pass_a_moment()
        scene.strike(scene.pid(gang.rng.randrange(2)))

    gang.run(gang.job(workers=len(gang.agents.pids())))  # agents that an earlier test has killed are up again
    shared_memory = {entry.name for entry in Path("/dev/shm").iterdir()}
    seen: list[Holdings] = []
    for _ in range(CYCLES):
        assert_exact(gang.run(gang.job("Everything", workers=2, recipe_args=SLOWLY), disturb=kill))
        seen.append(settled_holdings(gang))
    print(*seen, sep="\n")
    # The first cycle may open what is then kept: a library's own files.
    assert all(cycle == seen[1] for cycle in seen[2:])
    ours = {entry.name for entry in Path("/dev/shm").iterdir() if entry.name.startswith(("openclaw", "torch"))}
    assert ours <= shared_memory
