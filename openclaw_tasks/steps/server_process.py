"""The local Prefect server's process: Prefect's own app, on a socket it is given.

The same app and settings that `prefect server start` serves in the foreground, without its command line: that
one can only take a port number, which somebody else may take between its choice and its use.
Run as a script by `server_keeper.py`.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_GRACE_SECONDS: Final = 2
"""For open connections at the end. Browsers and flows keep theirs open for ever."""


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent`, a single-threaded process, ends; at once if it has."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


def serve(listener: socket.socket) -> None:
    """Serve API, services and UI on `listener` until SIGTERM."""
    # What is imported and migrated is no garbage: looking for some at every 700 objects takes a good part of a start.
    gc.set_threshold(20_000, 20, 20)
    # Imported late: they take seconds, and the parent is watched from before.
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    api = get_current_settings().server.api
    config = uvicorn.Config(
        create_app(final=True),
        lifespan="on",
        log_level=get_current_settings().server.logging_level.lower(),
        timeout_keep_alive=api.keepalive_timeout,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        ws_ping_interval=api.websocket_ping_interval,
        ws_ping_timeout=api.websocket_ping_timeout,
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    die_with(int(sys.argv[2]))
    serve(socket.socket(fileno=int(sys.argv[1])))
