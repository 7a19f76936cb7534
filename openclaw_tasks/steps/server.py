"""The Prefect server that a flow uses: the user's own, or a local one that lives while somebody uses it.

`join_server` starts one if none runs for this home folder and joins it otherwise; the last lease to go ends
it, also when its process was killed. How that works is told in `server_keeper.py`, which owns the server.

Prefect reads its settings when it is imported. So nothing here imports it, and the caller puts
`ServerLease.environment()` into `os.environ` before anything does.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from openclaw_tasks.errors import RunError, UsageError
from openclaw_tasks.steps import server_keeper
from openclaw_tasks.steps.prefect_address import configured_api_url, profiles_file
from openclaw_tasks.steps.server_keeper import LOCK_NAME, LOG_NAME, SOCKET_NAME

_START_SECONDS: Final = 60.0
_LEAVE_SECONDS: Final = 15.0
"""For the server's end at `close`; longer than the keeper's own bound, so only a stopped keeper meets it."""
_RETRY_SECONDS: Final = 0.02
_LOG_TAIL_LINES: Final = 5
_LOG_MAX_BYTES: Final = 4_000_000
_SERVER_PROCESS: Final = Path(server_keeper.__file__).with_name("server_process.py")


class ServerLease:
    """A Prefect server that may be used until `close`.

    A server of ours is held by an open socket. A child made by a bare `os.fork` shares it and so holds the
    server too; one that executes a program does not.
    """

    def __init__(
        self,
        api_url: str,
        *,
        folder: Path | None = None,
        keeper: socket.socket | None = None,
        keeper_pid: int = 0,
    ) -> None:
        self.api_url = api_url
        self.ui_url = api_url.removesuffix("/api")
        self._folder = folder
        self._keeper = keeper
        self._keeper_pid = keeper_pid
        self._is_ready = False

    @property
    def is_ours(self) -> bool:
        """Whether the server's life is ours, rather than one that the user has configured."""
        return self._folder is not None

    def wait_ready(self, deadline_seconds: float = _START_SECONDS) -> None:
        """Block until the server answers; at once for the user's own, which is not ours to judge.

        Raises RunError, with the log's last lines, if the server ends or the time is up.
        """
        if self._keeper is None or self._folder is None or self._is_ready:
            return
        message = _receive(self._keeper, time.monotonic() + deadline_seconds)
        if message is None:
            raise _start_error(self._folder, f"its keeper (pid {self._keeper_pid}) is gone or stopped")
        if "ready" not in message:
            raise _start_error(self._folder, message.get("failed", f"it gave no answer in {deadline_seconds:g} s"))

    def wait_lost(self) -> None:
        """Block while the server lives; for ever for the user's own. Raises RunError when it is lost."""
        if self._keeper is None or self._folder is None:
            while True:
                time.sleep(3600)
        self.wait_ready()
        select.select([self._keeper], [], [])
        raise RunError(f"the local Prefect server is lost; {_log_tail(self._folder)}")

    def environment(self) -> dict[str, str]:
        """Variables for this process and its children, to be set before Prefect is imported.

        With a server of ours, what Prefect keeps (results of tasks) goes into the home folder too, unless the
        user's `PREFECT_HOME` says otherwise; the user's profile still counts.
        """
        variables = {"PREFECT_API_URL": self.api_url, "DO_NOT_TRACK": "1"}
        if self._folder is None:
            return variables
        if not os.environ.get("PREFECT_HOME"):
            variables["PREFECT_HOME"] = str(self._folder)
            profiles = profiles_file(os.environ, {})
            if profiles.is_file():
                variables["PREFECT_PROFILES_PATH"] = str(profiles)
        return variables | _without_proxy(os.environ)

    def close(self) -> None:
        """Give the server up. If nobody else uses it, return when it has ended and its keeper is about to."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        with keeper, suppress(OSError):  # a keeper that is gone has nothing to be told
            keeper.shutdown(socket.SHUT_WR)
            keeper.settimeout(_LEAVE_SECONDS)
            while keeper.recv(4096):
                pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def join_server(home: Path, *, wait_ready: bool = True, deadline_seconds: float = _START_SECONDS) -> ServerLease:
    """The server that the user has configured, else the local one of `home`, started if need be.

    With `wait_ready=False` the address is known at once and the server starts in the meantime. Requests wait
    for it, but call `ServerLease.wait_ready` before the first one, for a clear error.
    Raises RunError if it does not come up, UsageError if `home` cannot be written.
    """
    configured = configured_api_url()
    if configured is not None:
        return ServerLease(configured)
    folder = home.absolute() / "prefect"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lease = _join_keeper(folder, time.monotonic() + deadline_seconds)
    except OSError as error:
        raise UsageError(
            f"the local Prefect server's folder {folder} cannot be used ({error}); set OPENCLAW_HOME to a "
            f"folder on a local disk that you may write, or PREFECT_API_URL to a server of yours"
        ) from error
    if wait_ready:
        try:
            lease.wait_ready(deadline_seconds)
        except BaseException:  # also Ctrl-C: a lease that nobody got would keep the server
            lease.close()
            raise
    return lease


def serve(home: Path, announce: Callable[[str], None]) -> None:
    """Serve the UI, telling its address to `announce`, until Ctrl-C or SIGTERM.

    Returns at once if the server is the user's own. Raises RunError if the server cannot be had or is lost.
    """
    with join_server(home) as lease:
        announce(lease.ui_url)
        if lease.is_ours:
            with suppress(KeyboardInterrupt):
                lease.wait_lost()


def _join_keeper(folder: Path, deadline: float) -> ServerLease:
    while True:
        keeper = _connect(folder) or _start_keeper(folder)
        if keeper is not None:
            hello = _receive(keeper, deadline)
            if hello:
                url = f"{hello['address']}/api"
                return ServerLease(url, folder=folder, keeper=keeper, keeper_pid=hello["keeper_pid"])
            keeper.close()  # it was about to end
        if time.monotonic() > deadline:
            lock = folder / LOCK_NAME
            holder = lock.read_text(encoding="utf-8").strip() or "an unknown process"
            raise RunError(
                f"the local Prefect server cannot be joined: {lock} is held by {holder}, which does not "
                f"answer; end that process, or set OPENCLAW_HOME to another folder"
            )
        time.sleep(_RETRY_SECONDS)


def _connect(folder: Path) -> socket.socket | None:
    with _short_path(folder) as short:
        keeper = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            keeper.connect(f"{short}/{SOCKET_NAME}")
        except (FileNotFoundError, ConnectionRefusedError):  # none, one that ends, or what a killed one left
            keeper.close()
            return None
        except BaseException:
            keeper.close()
            raise
        return keeper


def _start_keeper(folder: Path) -> socket.socket | None:
    """Start a keeper and be its first user; None if one lives, which the lock tells."""
    with (folder / LOCK_NAME).open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        with _listen(folder) as door:
            user = _connect(folder)
            assert user is not None
            try:
                _spawn_keeper(folder, lock.fileno(), door.fileno())
            except BaseException:
                user.close()
                raise
    return user


def _listen(folder: Path) -> socket.socket:
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        (folder / SOCKET_NAME).unlink(missing_ok=True)
        with _short_path(folder) as short:
            door.bind(f"{short}/{SOCKET_NAME}")
        (folder / SOCKET_NAME).chmod(0o600)
        door.listen(128)
    except BaseException:
        door.close()
        raise
    return door


def _spawn_keeper(folder: Path, lock_fd: int, door_fd: int) -> None:
    log = folder / LOG_NAME
    if log.exists() and log.stat().st_size > _LOG_MAX_BYTES:
        log.replace(log.with_suffix(".log.old"))
    arguments = server_keeper.Arguments(
        command=[sys.executable, "-P", str(_SERVER_PROCESS)], lock_fd=lock_fd, door_fd=door_fd
    )
    with log.open("ab") as output:
        # It ends as soon as the keeper has detached, so that nobody here is the keeper's parent.
        subprocess.run(
            [sys.executable, "-I", "-S", server_keeper.__file__, json.dumps(arguments)],
            cwd=folder,
            env=_server_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(lock_fd, door_fd),
            check=True,
        )


def _server_environment(folder: Path) -> dict[str, str]:
    """The server's environment: the same whoever starts it, since others will join it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    variables = inherited | {
        "DO_NOT_TRACK": "1",
        "PREFECT_HOME": str(folder),
        # Relative to the server's working directory, so that no character of the path can be part of a URL.
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": "sqlite+aiosqlite:///server.db",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_UI_API_URL": "/api",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    }
    if not _prefect_may_write_itself():
        variables["PREFECT_SERVER_UI_STATIC_DIRECTORY"] = str(folder / "ui")
    return variables


def _prefect_may_write_itself() -> bool:
    """Prefect unpacks its UI beside its own code, unless told another place."""
    prefect = importlib.util.find_spec("prefect")
    folders = prefect.submodule_search_locations if prefect is not None else None
    return folders is not None and os.access(Path(folders[0]) / "server", os.W_OK)


def _without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Additions to the environment that keep a proxy from being asked for this machine's own server."""
    if not any(name.lower() in ("http_proxy", "all_proxy") for name in environment):
        return {}
    known = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    merged = ",".join(dict.fromkeys([*filter(None, known.split(",")), "127.0.0.1", "localhost"]))
    return {"no_proxy": merged, "NO_PROXY": merged}


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """A name of `folder` that fits into a socket address, which holds 107 bytes."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _receive(keeper: socket.socket, deadline: float) -> dict[str, Any] | None:
    """The next message; empty if none came in time, None if the connection has ended."""
    line = bytearray()
    while not line.endswith(b"\n"):
        keeper.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            byte = keeper.recv(1)  # a byte at a time: a few short lines in all, and none is read too far
        except TimeoutError:
            return {}
        except ConnectionError:
            return None
        if not byte:
            return None
        line += byte
    keeper.settimeout(None)
    message: dict[str, Any] = json.loads(line)
    return message


def _start_error(folder: Path, reason: str) -> RunError:
    return RunError(f"the local Prefect server did not start: {reason}; {_log_tail(folder)}")


def _log_tail(folder: Path) -> str:
    log = folder / LOG_NAME
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return f"its log cannot be read: {error}"
    tail = " | ".join(line.strip() for line in lines[-_LOG_TAIL_LINES:] if line.strip())
    return f"see {log}, which ends: {tail}" if tail else f"see {log}, which is empty"
