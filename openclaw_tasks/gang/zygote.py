"""The zygote: one process per host and flow that has torch loaded and forks a launcher for each agent that asks.

Importing torch takes seconds of processor time; with the zygote a host pays for it once, while everything else of a
start goes on, and an agent that takes a dead one's place has its launcher at once. It is started by exec, has one
thread, no event loop and no open filesystem, and never holds more than what it has imported.

Agents dial its abstract socket, which leaves nothing behind; only processes of the same user are served. Each
connection becomes the control line of a launcher. `python -m openclaw_tasks.gang.zygote FD` with FD that socket.
"""

from __future__ import annotations

import gc
import json
import os
import secrets
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
from typing import Final, NoReturn

from openclaw_tasks.gang.launcher import Launcher, assert_one_thread
from openclaw_tasks.training.control import ControlChannel, ControlClosed

_BACKLOG: Final = 128
RANK_VARIABLES: Final = {
    # One thread: it must be able to fork, and a rank sets its own number of threads.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Memory that a step frees serves the next one. Dask's workers set the first of these to 64 KiB, for tasks that come
    # and go: a rank then gave 240 MB back to the kernel and faulted it in again in each step of a small model. Blocks
    # over 32 MiB would always be mapped anew, however high their threshold: gradients of 9 million parameters are, and
    # a step spent 7% of its time on the faults. So nothing is mapped.
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_MAX_": "0",
}


class Zygote:
    """Starts the process; agents of this host may dial `address` at once. It ends with `close`, or with us."""

    def __init__(self, errors: int = subprocess.DEVNULL) -> None:
        """`errors`: where it says why it failed. By default nowhere: an agent then starts its own, and logs that."""
        self.address = f"openclaw-{secrets.token_hex(8)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"\0{self.address}")
            listener.listen(_BACKLOG)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "openclaw_tasks.gang.zygote", str(listener.fileno())],
                pass_fds=[listener.fileno()],
                stdin=subprocess.PIPE,  # its end is the sign that we are gone
                stdout=subprocess.DEVNULL,  # never our own: a child that holds the flow's output hides the flow's death
                stderr=errors,
                env={**os.environ, **RANK_VARIABLES},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """End it; may be called again. Launchers that it has forked end with their agents."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()  # it holds nothing, and may be importing for seconds yet
        self._process.wait()


def dial(address: str) -> ControlChannel:
    """The control line of a new launcher, in the caller's environment and folder and with its outputs.

    Raises ControlClosed if no zygote is there.
    """
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        line.connect(f"\0{address}")
    except OSError as error:
        line.close()
        raise ControlClosed(str(error)) from error
    channel = ControlChannel(line)
    environment = os.memfd_create("environment")  # not in the message: it may be larger than a packet
    with os.fdopen(environment, "wb") as file:
        file.write(json.dumps({**os.environ, **RANK_VARIABLES}).encode())
        file.flush()
        channel.send({"type": "adopt", "folder": os.getcwd()}, [1, 2, file.fileno()])  # noqa: PTH109 (text)
    return channel


def _serve(listener: socket.socket) -> None:
    """Fork a launcher for each connection, until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a launcher ended: the kernel buries it
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    poller.register(0, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poller.poll()}
        if 0 in ready:
            return
        connection, _ = listener.accept()
        if _is_ours(connection):
            assert_one_thread()
            if os.fork() == 0:
                _become_launcher(listener, connection)
        connection.close()


def _is_ours(connection: socket.socket) -> bool:
    """Whether the peer is of the same user."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


def _become_launcher(listener: socket.socket, connection: socket.socket) -> NoReturn:
    status = 1
    try:
        listener.close()
        os.setsid()
        line = ControlChannel(connection)
        received = line.receive(timeout_seconds=None)
        assert received is not None
        message, fds = received
        _take_over(message["folder"], fds)
        Launcher(line).serve()
        status = 0
    except ControlClosed:
        status = 0  # the agent went before it was served
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        # Nothing is left to clean up, and taking torch down in order takes a second.
        os._exit(status)


def _take_over(folder: str, fds: list[int]) -> None:
    """Be in the agent's folder, with its environment, and say what is to be said where the agent does."""
    output, errors, environment = fds
    os.dup2(output, 1)
    os.dup2(errors, 2)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for fd in (output, errors, nothing):
        os.close(fd)
    os.chdir(folder)
    with os.fdopen(environment, "rb") as file:
        file.seek(0)
        variables = json.loads(file.read())
    os.environ.clear()
    os.environ.update(variables)


def _preload() -> None:
    """Import all that a rank or a spare job needs and that is slow, once for every later fork."""
    gc.disable()  # nothing of it is garbage, and looking for some takes a quarter of the time
    import numpy  # noqa: F401
    import safetensors.torch  # noqa: F401
    import torch._dynamo
    import torch.utils.data  # noqa: F401

    import openclaw_tasks.training.rank
    import openclaw_tasks.training.spare  # noqa: F401

    gc.freeze()  # nor later: the collector of a forked process does not touch, and so copy, these pages
    gc.enable()


def main() -> None:
    """The process."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    listener.set_inheritable(False)
    _preload()
    _serve(listener)
    os._exit(0)


if __name__ == "__main__":
    main()
