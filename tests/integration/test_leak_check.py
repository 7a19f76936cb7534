"""The leak check finds what it says it finds; each test cleans up, since it is checked itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import leaks
import psutil

ORPHAN = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
print(os.getpid(), flush=True)
os.close(1)
time.sleep(60)
"""


def found_after(before: leaks.Holdings, mark: str = "no-mark") -> list[str]:
    return leaks.wait_for_leaks(before, mark, settle_seconds=0)


def test_nothing_left_is_no_leak() -> None:
    assert leaks.wait_for_leaks(leaks.take_stock(), "no-mark") == []


def test_an_orphan_in_its_own_session_is_found_by_its_mark_and_killed() -> None:
    before, mark = leaks.take_stock(), uuid.uuid4().hex
    environment = os.environ | {leaks.MARK: mark}
    orphan = int(subprocess.check_output([sys.executable, "-c", ORPHAN], env=environment))
    try:
        assert [leak.split(":")[0] for leak in found_after(before, mark)] == [f"process {orphan}"]
        assert found_after(before, "another-mark") == []
        leaks.kill_leftovers(before, mark)
        assert leaks.wait_for_leaks(before, mark) == []
    finally:
        if psutil.pid_exists(orphan):
            os.kill(orphan, signal.SIGKILL)


def test_a_child_without_the_mark_is_found() -> None:
    before = leaks.take_stock()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={}) as child:
        assert any(leak.startswith(f"process {child.pid}:") for leak in found_after(before))
        child.kill()


def test_a_listening_port_is_found() -> None:
    before = leaks.take_stock()
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert f"listening port {server.getsockname()[1]} of this process" in found_after(before)


def test_shared_memory_is_found() -> None:
    before = leaks.take_stock()
    entry = Path("/dev/shm") / f"leak-{uuid.uuid4().hex}"
    entry.touch()
    try:
        assert f"shared memory {entry}" in found_after(before)
    finally:
        entry.unlink()


def test_open_files_are_found_beyond_a_few() -> None:
    before = leaks.take_stock()
    descriptors = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    try:
        assert found_after(before) == []
        descriptors += [os.open("/dev/null", os.O_RDONLY) for _ in range(5)]
        (leak,) = found_after(before)
        assert leak.startswith("8 more open files")
        assert "/dev/null" in leak
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
