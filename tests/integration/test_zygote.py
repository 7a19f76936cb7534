"""The process that forks launchers: where they come from, what they take over, and when each ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from openclaw_tasks.gang.zygote import Zygote, dial
from openclaw_tasks.training.control import ControlChannel, ControlClosed

PATIENCE_SECONDS = 60.0  # torch is imported in that time, on a busy machine


@pytest.fixture(name="zygote", scope="module")
def _zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


def launcher_of(line: ControlChannel) -> psutil.Process:
    received = line.receive(PATIENCE_SECONDS)
    assert received is not None
    assert received[0]["type"] == "launcher-ready"
    return psutil.Process(received[0]["pid"])


def outputs(pid: int) -> list[Path]:
    return [Path(f"/proc/{pid}/fd/{fd}").readlink() for fd in (1, 2)]


def test_a_launcher_is_forked_where_its_agent_is_and_ends_with_its_line(
    zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = dial(zygote.address)
    launcher = launcher_of(line)
    assert launcher.ppid() == zygote.pid
    assert Path(launcher.cwd()) == tmp_path
    assert os.getsid(launcher.pid) == launcher.pid
    assert launcher.num_threads() == 1
    assert outputs(launcher.pid) == outputs(os.getpid())
    line.close()
    launcher.wait(PATIENCE_SECONDS)


def test_an_agent_that_goes_before_it_is_served_leaves_nothing(zygote: Zygote) -> None:
    dial(zygote.address).close()
    line = dial(zygote.address)
    launcher = launcher_of(line)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while [child.pid for child in psutil.Process(zygote.pid).children()] != [launcher.pid]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    line.close()
    launcher.wait(PATIENCE_SECONDS)


def test_launchers_outlive_their_zygote_and_no_more_come() -> None:
    zygote = Zygote()
    line = dial(zygote.address)
    launcher = launcher_of(line)
    zygote.close()
    assert not psutil.pid_exists(zygote.pid)
    assert launcher.is_running()
    with pytest.raises(ControlClosed):
        dial(zygote.address)
    line.close()
    launcher.wait(PATIENCE_SECONDS)
