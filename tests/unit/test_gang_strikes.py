"""Faults that a command asked for: each strikes once, at its place."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw_tasks.config.faults import Fault, parse_fault
from openclaw_tasks.gang.strikes import Strikes


def strikes(*texts: str) -> Strikes:
    """Faults, with ranks 0 and 1 as members 4 and 7 on agents "a" and "b"."""
    made = Strikes([parse_fault(text) for text in texts])
    made.number([4, 7], ["a", "b"])
    return made


class Noted:
    def __init__(self) -> None:
        self.faults: list[str] = []
        self.at = 0.0

    def __call__(self, fault: Fault, at: float) -> None:
        self.faults.append(fault.text())
        self.at = at


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        yield process
        process.kill()


def test_a_rank_is_told_what_to_do_to_itself() -> None:
    faults = strikes("kill-rank:1@40", "stop-rank:1@20", "kill-rank:0@3", "kill-agent:1@9")

    assert faults.of_member(7) == {"40": "kill-rank", "20": "stop-rank"}
    assert faults.of_member(4) == {"3": "kill-rank"}
    assert faults.of_member(9) == {}, "a replacement is another rank"


def test_before_ranks_are_numbered_nobody_is_meant() -> None:
    faults = Strikes([parse_fault("kill-rank:0@3")])

    assert faults.of_member(0) == {}
    assert faults.struck_itself(0) is None


def test_all_ranks_hold_where_something_is_struck_from_outside() -> None:
    faults = strikes("kill-agent:1@9", "delete-target:0@5", "kill-flow@9", "kill-rank:0@3")

    assert faults.holds() == [5, 9]


def test_a_fault_that_struck_is_not_pending_any_more() -> None:
    """Each fires once per command, also after a stage's retry numbers the ranks anew."""
    faults = strikes("kill-rank:1@40")

    assert faults.struck_itself(4) is None
    struck = faults.struck_itself(7)

    assert struck is not None
    assert struck.text() == "kill-rank:1@40"
    assert faults.pending == []
    faults.number([8, 9], ["a", "b"])
    assert faults.of_member(9) == {}


def test_of_several_faults_of_a_rank_the_one_of_the_step_struck() -> None:
    faults = strikes("kill-rank:1@40", "stop-rank:1@20")

    earliest = faults.struck_itself(7)
    assert earliest is not None
    assert earliest.text() == "stop-rank:1@20"

    faults = strikes("kill-rank:1@40", "stop-rank:1@20")
    by_step = faults.struck_itself(7, step=40)
    assert by_step is not None
    assert by_step.text() == "kill-rank:1@40"


def test_an_agent_is_killed_at_its_step_and_only_once(victim: subprocess.Popen[bytes]) -> None:
    faults, noted = strikes("kill-agent:1@9"), Noted()

    faults.strike(8, {"b": victim.pid}, [], noted)
    assert noted.faults == []
    before = time.monotonic()
    faults.strike(9, {"a": os.getpid(), "b": victim.pid}, [], noted)

    assert victim.wait() == -9
    assert noted.faults == ["kill-agent:1@9"]
    assert before <= noted.at <= time.monotonic()
    faults.strike(9, {"a": os.getpid()}, [], noted)
    assert noted.faults == ["kill-agent:1@9"]
    assert faults.holds() == []


def test_an_agent_that_is_gone_already_cannot_be_killed(victim: subprocess.Popen[bytes]) -> None:
    victim.kill()
    victim.wait()
    noted = Noted()

    strikes("kill-agent:1@9").strike(9, {"b": victim.pid}, [], noted)
    strikes("kill-agent:1@9").strike(9, {}, [], noted)

    assert noted.faults == ["kill-agent:1@9"] * 2


def test_the_agent_that_a_fault_means_is_known_before_it_is_struck() -> None:
    faults = strikes("kill-agent:1@9", "kill-flow@3")

    assert [faults.agent_of(fault) for fault in faults.pending] == ["b", None]


@pytest.mark.parametrize("name", ["target", "with space", "per%20cent", "ümlaut"])
@pytest.mark.parametrize("form", ["file://{}", "file://localhost{}"])
def test_a_target_vanishes_with_all_that_is_in_it(tmp_path: Path, name: str, form: str) -> None:
    folder = tmp_path / name
    (folder / "run" / "log").mkdir(parents=True)
    (folder / "run" / "log" / "stripe").write_bytes(b"x")
    bystander = tmp_path / "other"
    bystander.mkdir()

    strikes("delete-target:1@5").strike(5, {}, ["file:///nowhere", form.format(folder)], Noted())

    assert list(tmp_path.iterdir()) == [bystander]


def test_a_target_that_is_gone_already_cannot_be_deleted(tmp_path: Path) -> None:
    noted = Noted()

    strikes("delete-target:0@5").strike(5, {}, [f"file://{tmp_path}/gone"], noted)

    assert noted.faults == ["delete-target:0@5"]


def test_a_target_is_deleted_under_the_hands_of_who_writes_into_it(tmp_path: Path) -> None:
    """The writer works on, in folders it has open by their path: it finds them gone and makes none anew."""
    folder = tmp_path / "target"
    (folder / "log").mkdir(parents=True)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with contextlib.suppress(FileNotFoundError):
                (folder / "log" / f"{number}").write_bytes(b"x")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        strikes("delete-target:0@5").strike(5, {}, [f"file://{folder}"], Noted())
        assert list(tmp_path.iterdir()) == []
    finally:
        stop.set()
        writer.join()


def test_the_flow_is_killed_from_within() -> None:
    program = (
        "from openclaw_tasks.config.faults import parse_fault\n"
        "from openclaw_tasks.gang.strikes import Strikes\n"
        "Strikes([parse_fault('kill-flow@3')]).strike(3, {}, [], lambda fault, at: print(fault.text(), flush=True))\n"
        "print('still here', flush=True)\n"
    )

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout) == (-9, "kill-flow@3\n")
