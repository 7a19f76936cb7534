"""Telling one process of this host from another that later has its number."""

from __future__ import annotations

import socket
from pathlib import Path


def boot_id() -> str:
    """Of this host since it was last started: a pid means nothing after that."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int | None:
    """When `pid` was started, in clock ticks since boot; None when there is no such process, or it has ended."""
    try:
        # The command's name is in parentheses and may hold anything; field 22 counts from the first.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def mark_of(pid: int) -> str | None:
    """A text that no other process ever has; None when it has ended."""
    ticks = start_ticks(pid)
    return None if ticks is None else f"{socket.gethostname()} {boot_id()} {pid} {ticks}"


def is_known_gone(mark: str) -> bool:
    """Whether the process of that mark ran on this host and does not any more."""
    host, _, pid, _ = mark.split()
    return host == socket.gethostname() and mark_of(int(pid)) != mark
