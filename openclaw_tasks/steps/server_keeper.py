"""Keeps one local Prefect server alive for as long as somebody is connected, and leaves nothing behind.

Run as a script by `server.py`, by its path and without site-packages: standard library only, so that it is up
in a few hundredths of a second and stays small. Single-threaded.

    user ──unix socket──▶ keeper ──parent of──▶ server (server_process.py)

- A user is alive as long as its connection is: a killed one counts as gone at once, whoever it was.
- When the last connection ends, so do the server and the keeper. A user that half-closes its connection and
  reads on sees the end of file when the server is gone and the keeper has nothing left to do.
- The keeper holds the lock file as long as it lives, and the server inherits it: while it is locked, nobody
  starts another server on the same database.
- The keeper owns the listening TCP socket and hands it down. So the port cannot be lost between its choice
  and its use (pytorch/pytorch#91940), requests wait while the server starts, and a server that dies is
  replaced under the same address.
- The server asks the kernel to be killed when the keeper dies.

What it says on a connection, a JSON object a line: first `Hello`, then `{"ready": true}` and, if the server
cannot be kept up, `{"failed": reason}`.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn, TypedDict

LOCK_NAME: Final = "keeper.lock"
SOCKET_NAME: Final = "keeper.sock"
LOG_NAME: Final = "server.log"

_STOP_SECONDS: Final = 8.0
"""For a server that is asked to end, before it is killed."""
_PROBE_RETRY_SECONDS: Final = 0.25
_MAX_RESTARTS: Final = 5
_BACKLOG: Final = 2048


class Hello(TypedDict):
    """The first line of every connection."""

    address: str
    keeper_pid: int
    server_pid: int


class Arguments(TypedDict):
    """The script's only argument, as JSON. The keeper's folder is its working directory."""

    command: Sequence[str]
    """The server's; two arguments are added: the listening socket's descriptor, and the keeper's pid."""
    lock_fd: int
    door_fd: int


class Keeper:
    """One keeper's state; `run` returns when it has nothing to keep any more and nothing is left."""

    def __init__(self, command: Sequence[str], lock_fd: int, door: socket.socket) -> None:
        self._command = command
        self._lock_fd = lock_fd
        self._door = door
        self._users: set[socket.socket] = set()
        self._untold: set[socket.socket] = set()
        self._last_user: socket.socket | None = None
        self._web = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self._selector = selectors.DefaultSelector()
        self._server: subprocess.Popen[bytes] | None = None
        self._server_pidfd = -1
        self._probe: socket.socket | None = None
        self._retry_probe = False
        self._is_ready = False
        self._restarts = 0
        self._failure: str | None = None

    def run(self) -> None:
        """Serve until the last user is gone or the server cannot be kept up."""
        try:
            self._start_server()
            self._door.setblocking(False)
            self._watch(self._door, self._welcome)
            self._welcome()  # whoever started us was connected before we were there
            while self._users and self._failure is None:
                self._turn()
        finally:
            self._end()

    def _turn(self) -> None:
        events = self._selector.select(_PROBE_RETRY_SECONDS if self._retry_probe else None)
        if self._retry_probe:
            self._send_probe()
        for key, _ in events:
            # An earlier callback of this round may have closed it.
            if self._selector.get_map().get(key.fd) is key:
                key.data()

    def _watch(self, source: socket.socket | int, callback: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, callback)

    # Users

    def _welcome(self) -> None:
        while True:
            try:
                user, _ = self._door.accept()
            except BlockingIOError:
                return
            user.setblocking(False)
            self._users.add(user)
            self._watch(user, partial(self._listen_to, user))
            assert self._server is not None
            host, port = self._web.getsockname()
            hello = Hello(address=f"http://{host}:{port}", keeper_pid=os.getpid(), server_pid=self._server.pid)
            self._tell(user, dict(hello))
            self._untold.add(user)
            self._tell_ready()

    def _listen_to(self, user: socket.socket) -> None:
        """Users say nothing; what can be read is their end."""
        try:
            if user.recv(4096):
                return
        except BlockingIOError:
            return
        except OSError:  # reset by a killed user: as good as its end
            pass
        self._selector.unregister(user)
        self._users.discard(user)
        self._untold.discard(user)
        if not self._users:
            self._welcome()  # somebody may have come in the same moment
        if self._users:
            user.close()
        else:
            self._last_user = user  # left open until the server is gone: its user can wait for that

    def _tell(self, user: socket.socket, message: dict[str, object]) -> None:
        # A user that is gone or reads nothing is found by its end; a few short lines always fit the buffer.
        with suppress(OSError):
            user.send(json.dumps(message).encode() + b"\n")

    def _tell_ready(self) -> None:
        if self._is_ready:
            for user in self._untold:
                self._tell(user, {"ready": True})
            self._untold.clear()

    # The server

    def _start_server(self) -> None:
        self._is_ready = False
        self._server = subprocess.Popen(
            [*self._command, str(self._web.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            pass_fds=(self._web.fileno(), self._lock_fd),
        )
        self._server_pidfd = os.pidfd_open(self._server.pid)
        self._watch(self._server_pidfd, self._server_ended)
        self._send_probe()

    def _send_probe(self) -> None:
        """Ask for the server's health; the connection waits in the backlog until the server accepts it."""
        self._retry_probe = False
        self._probe = socket.create_connection(self._web.getsockname())
        self._probe.sendall(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        self._probe.setblocking(False)
        self._watch(self._probe, self._probe_answered)

    def _probe_answered(self) -> None:
        assert self._probe is not None
        try:
            status = self._probe.recv(4096).split(b" ", 2)[1:2]
        except OSError:  # the server died; its pidfd says so too
            status = []
        self._drop_probe()
        if status != [b"200"]:
            self._retry_probe = True
            return
        self._is_ready = True
        self._tell_ready()

    def _drop_probe(self) -> None:
        if self._probe is not None:
            self._selector.unregister(self._probe)
            self._probe.close()
            self._probe = None
        self._retry_probe = False

    def _server_ended(self) -> None:
        assert self._server is not None
        status = self._server.wait()
        self._forget_server()
        if not self._is_ready:
            self._failure = f"it ended while starting, with status {status}"
        elif self._restarts == _MAX_RESTARTS:
            self._failure = f"it died {_MAX_RESTARTS + 1} times, the last with status {status}"
        else:
            self._restarts += 1
            print(
                f"the Prefect server ended with status {status}; starting it again",
                file=sys.stderr,
                flush=True,
            )
            self._start_server()

    def _forget_server(self) -> None:
        self._drop_probe()
        self._selector.unregister(self._server_pidfd)
        os.close(self._server_pidfd)
        self._server = None

    def _end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self._door.close()
        Path(SOCKET_NAME).unlink(missing_ok=True)
        self._web.close()
        if self._server is not None:
            if self._is_ready:
                self._server.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self._server.wait(_STOP_SECONDS)
            # Also a server that is starting: it ends only when it has started. Migrations are transactions.
            self._server.kill()
            self._server.wait()
        if self._failure is not None:
            for user in self._users:
                self._tell(user, {"failed": self._failure})
        # The rest closes with this process: the users' connections and the lock.


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def main(argument: str) -> None:
    """Detach from whoever started us, who waits only for that, and keep."""
    arguments: Arguments = json.loads(argument)
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stop)
    os.ftruncate(arguments["lock_fd"], 0)
    os.write(arguments["lock_fd"], f"pid {os.getpid()} on {socket.gethostname()}\n".encode())
    keeper = Keeper(arguments["command"], arguments["lock_fd"], socket.socket(fileno=arguments["door_fd"]))
    keeper.run()
    # By the kernel: Python's own end would close the last user's connection well before the process is gone.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
