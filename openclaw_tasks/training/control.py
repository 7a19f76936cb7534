"""The line between an agent and a process that its launcher forked: JSON packets, with file descriptors.

One packet is one message. `SOCK_SEQPACKET` keeps the boundaries, so neither side buffers partial frames, and a
closed peer shows as an empty packet at once.
"""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]

_MAX_PACKET_BYTES = 160_000  # below the kernel's default limit for one packet on a local socket (212,992)
_MAX_FDS = 4


class ControlClosed(Exception):
    """The other side has gone."""


class ControlChannel:
    """One end of the line. Sending blocks for a moment only (packets are small and the peer reads them)."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._socket.setblocking(True)

    @classmethod
    def pair(cls) -> tuple[ControlChannel, ControlChannel]:
        """Both ends; give one to a child."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(mine), cls(theirs)

    @classmethod
    def adopt(cls, fd: int) -> ControlChannel:
        """The end that came as a descriptor."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send one message. Raises ControlClosed when the other side has gone."""
        data = json.dumps(message, separators=(",", ":")).encode()
        assert len(data) <= _MAX_PACKET_BYTES, f"control message of {len(data)} bytes: {message.get('type')}"
        try:
            socket.send_fds(self._socket, [data], list(fds))
        except (BrokenPipeError, ConnectionResetError, OSError) as error:
            raise ControlClosed(str(error)) from error

    def receive(self, timeout_seconds: float | None = 0.0) -> tuple[Message, list[int]] | None:
        """The next message and its descriptors; None when none came in time. Raises ControlClosed."""
        if timeout_seconds is not None and not self.is_readable(timeout_seconds):
            return None
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, _MAX_PACKET_BYTES, _MAX_FDS)
        except (ConnectionResetError, OSError) as error:
            raise ControlClosed(str(error)) from error
        if not data:
            raise ControlClosed("end of file")
        for fd in fds:
            os.set_inheritable(fd, False)
        return json.loads(data), list(fds)

    def is_readable(self, timeout_seconds: float = 0.0) -> bool:
        """Whether a message, or the end, waits to be read."""
        # poll, not select: a process with many open files has descriptors above select's 1,024.
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        return bool(poller.poll(timeout_seconds * 1000))

    def close(self) -> None:
        self._socket.close()
