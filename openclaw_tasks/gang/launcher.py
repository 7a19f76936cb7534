"""The launcher: one single-threaded process per agent that has torch loaded and forks ranks in milliseconds.

The zygote forks it. Safe because neither has more than one thread (asserted before each fork), an event loop, an open
filesystem or a CUDA context; nothing else of the project forks without exec. It ends, and takes its children along,
when the line to its agent closes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
from typing import Any, NoReturn

from openclaw_tasks.training.control import ControlChannel, ControlClosed, Message

_PR_SET_PDEATHSIG = 1


def assert_one_thread() -> None:
    """To be called just before a fork, which would copy the locks that other threads hold and nobody releases."""
    tasks = len(os.listdir("/proc/self/task"))  # noqa: PTH208 (a count, before each fork)
    assert tasks == 1, f"this process has {tasks} threads and must not fork"


class Launcher:
    """Serves fork and kill requests, reports each child's end."""

    def __init__(self, line: ControlChannel) -> None:
        self._line = line
        self._children: dict[int, int] = {}  # number -> pid
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # The flow's terminal sends Ctrl-C to everybody; the supervisor decides what ends when.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def serve(self) -> None:
        """Until the line closes."""
        poller = select.poll()
        poller.register(self._line, select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        try:
            self._line.send({"type": "launcher-ready", "pid": os.getpid()})
            while True:
                poller.poll()
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
                self._reap()
                received = self._line.receive()
                if received is not None:
                    self._handle(*received)
        except ControlClosed:
            pass
        finally:
            for pid in self._children.values():
                _kill(pid)

    def _handle(self, message: Message, fds: list[int]) -> None:
        if message["type"] == "fork":
            self._fork(message, fds)
        elif message["type"] == "kill" and message["number"] in self._children:
            _kill(self._children[message["number"]])

    def _fork(self, message: Message, fds: list[int]) -> None:
        assert_one_thread()
        launcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_child(launcher, message, fds)
        for fd in fds:
            os.close(fd)
        self._children[message["number"]] = pid
        self._line.send({"type": "forked", "number": message["number"], "pid": pid})

    def _become_child(self, launcher: int, message: Message, fds: list[int]) -> NoReturn:
        status = 1
        try:
            os.setpgid(0, 0)
            _die_with_parent(launcher)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for fd in (self._wake_read, self._wake_write, self._line.fileno()):
                os.close(fd)
            status = _run_child(message, fds)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        numbers = {pid: number for number, pid in self._children.items()}
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            number = numbers[pid]
            del self._children[number]
            _kill_group(pid)  # what the child started itself, e.g. loader workers
            self._line.send(
                {"type": "exited", "number": number, "status": os.waitstatus_to_exitcode(status)},
            )


def _run_child(message: Message, fds: list[int]) -> int:
    from openclaw_tasks.training import rank, spare

    main: Any = {"rank": rank.main, "spare": spare.main}[message["kind"]]
    result: int = main(message["spec"], fds)
    return result


def _die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when the launcher ends, and check that it has not ended already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


def _kill(pid: int) -> None:
    """Kill a child that has not been reaped, and all it started."""
    _kill_group(pid)
    os.kill(pid, signal.SIGKILL)  # it may not have made its group yet


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
