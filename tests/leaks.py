"""Finds what a test leaves behind: processes, listening ports, shared memory, open files.

A process belongs to a test if it inherited the test's mark in its environment, whoever its parent is by now,
or if it is a new child of this one. What runs beside the tests on the same machine is nobody's leak.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

MARK: Final = "OPENCLAW_TEST_ID"
SETTLE_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
_FILE_ALLOWANCE: Final = 4
"""Open files that a library may keep for good when it is first used: a selector, its self-pipe, a log."""
_SHARED_MEMORY: Final = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Holdings:
    """What this process and its children hold at one time."""

    children: frozenset[int]
    ports: frozenset[int]
    shared_memory: frozenset[str]
    files: dict[int, str]


def take_stock() -> Holdings:
    """What is held now, by this process, its children, and in shared memory by anybody."""
    return Holdings(
        children=frozenset(child.pid for child in psutil.Process().children(recursive=True)),
        ports=frozenset(_listening_ports()),
        shared_memory=frozenset(entry.name for entry in _SHARED_MEMORY.iterdir()),
        files=_open_files(),
    )


def wait_for_leaks(
    before: Holdings,
    mark: str,
    settle_seconds: float = SETTLE_SECONDS,
    *,
    expected: Callable[[], Collection[int]] = frozenset,
) -> list[str]:
    """What is left of a test, in words; empty as soon as nothing is. What passes in the given time is no leak.

    `expected`: processes that outlive tests on purpose, as of now; those below them count as leaks.
    """
    deadline = time.monotonic() + settle_seconds
    while True:
        found = _find_leaks(before, mark, expected())
        if not found or time.monotonic() > deadline:
            return found
        gc.collect()  # what only a cycle still holds is no leak
        time.sleep(_POLL_SECONDS)


def kill_leftovers(before: Holdings, mark: str, expected: Collection[int] = ()) -> None:
    """End the processes that a test left, so that it alone fails for them."""
    for process in _leftover_processes(before, mark, expected):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass


def _find_leaks(before: Holdings, mark: str, expected: Collection[int]) -> list[str]:
    now = take_stock()
    leftovers = _leftover_processes(before, mark, expected)
    found = [f"process {process.pid}: {_describe(process)}" for process in leftovers]
    found += [f"listening port {port} of this process" for port in sorted(now.ports - before.ports)]
    new_memory = now.shared_memory - before.shared_memory
    found += [f"shared memory /dev/shm/{name}" for name in sorted(new_memory - _mapped_by_others(new_memory, mark))]
    new_files = {fd: name for fd, name in now.files.items() if before.files.get(fd) != name}
    if len(now.files) > len(before.files) + _FILE_ALLOWANCE:
        listed = ", ".join(f"{fd} -> {name}" for fd, name in sorted(new_files.items()))
        found.append(f"{len(now.files) - len(before.files)} more open files: {listed}")
    return found


def _leftover_processes(before: Holdings, mark: str, expected: Collection[int]) -> list[psutil.Process]:
    mine = {child.pid: child for child in psutil.Process().children(recursive=True)}
    mine |= {process.pid: process for process in _marked_processes(mark)}
    accounted = before.children.union(expected)
    return [mine[pid] for pid in sorted(mine) if pid not in accounted and _is_running(mine[pid])]


def _marked_processes(mark: str) -> Iterator[psutil.Process]:
    wanted = f"{MARK}={mark}".encode()
    for pid in psutil.pids():
        if pid == os.getpid():
            continue
        try:
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                yield psutil.Process(pid)
        except (OSError, psutil.NoSuchProcess):  # ended meanwhile, or not ours to read
            continue


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _describe(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.NoSuchProcess:
        return "has just ended"


def _listening_ports() -> Iterator[int]:
    for connection in psutil.Process().net_connections(kind="inet"):
        if connection.status == psutil.CONN_LISTEN:
            yield connection.laddr.port


def _open_files() -> dict[int, str]:
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[int(entry.name)] = str(entry.readlink())
        except OSError:  # the descriptor of this very listing
            continue
    return found


def _mapped_by_others(names: frozenset[str], mark: str) -> set[str]:
    """Which of the entries belong to processes that run beside the tests."""
    if not names:
        return set()
    ours = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    ours |= {process.pid for process in _marked_processes(mark)}
    found: set[str] = set()
    for pid in set(psutil.pids()) - ours:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text()
        except OSError:
            continue
        found |= {name for name in names if f"{_SHARED_MEMORY}/{name}" in maps}
    return found
