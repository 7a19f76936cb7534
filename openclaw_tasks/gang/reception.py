"""The supervisor's door: agents connect here, prove themselves, are heard and told things, and are missed."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import Protocol

from openclaw_tasks.collectives.forming import family_of
from openclaw_tasks.errors import UsageError
from openclaw_tasks.gang.wire import Frame, Wire, WireClosed

_BEAT_SECONDS = 0.5


class Host(Protocol):
    """Whom the reception tells what happens at the door."""

    def agent_joined(self, name: str) -> None: ...

    def agent_said(self, name: str, frame: Frame) -> None: ...

    def agent_lost(self, name: str, reason: str) -> None: ...


@dataclass(slots=True)
class _Link:
    """A connected agent."""

    wire: Wire
    pid: int
    heard_at: float = field(default_factory=time.monotonic)


class Reception:
    """Used by the supervisor's thread alone; `selector` calls back into it.

    Raises UsageError where `host` is not this machine's.
    """

    def __init__(
        self, host: str, token: bytes, lease_seconds: float, selector: selectors.BaseSelector, owner: Host
    ) -> None:
        self._token = token
        self._lease_seconds = lease_seconds
        self._selector = selector
        self._owner = owner
        try:
            self._listener = socket.create_server((host, 0), family=family_of(host))
        except (OSError, UnicodeError) as error:  # UnicodeError: no host can have such a name
            # Python says once more what it tried.
            reason = str(getattr(error, "strerror", None) or "no host's name").partition(" (while ")[0]
            raise UsageError(
                f"cluster.host={host!r} cannot be bound to ({reason}); "
                "name an address or a host name of this machine, such as 127.0.0.1"
            ) from error
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._strangers: set[Wire] = set()
        self._agents: dict[str, _Link] = {}
        self._next_number = 0
        self._beat_at = 0.0
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    @property
    def names(self) -> tuple[str, ...]:
        """The connected agents."""
        return tuple(self._agents)

    def pids(self) -> dict[str, int]:
        """Their process ids."""
        return {name: link.pid for name, link in self._agents.items()}

    def host_of(self, name: str) -> str:
        """The address at which an agent's machine is reached; empty if it is gone."""
        link = self._agents.get(name)
        return link.wire.peer_host if link is not None else ""

    def tell(self, name: str, frame: Frame) -> None:
        """Send a frame to an agent; to one that is gone, nothing."""
        link = self._agents.get(name)
        if link is None:
            return
        try:
            link.wire.send(frame)
        except WireClosed as error:
            self._lose(name, str(error))

    def tick(self, now: float) -> None:
        """Deadlines and heartbeats."""
        for stranger in list(self._strangers):
            try:
                stranger.check_proof_deadline()
            except WireClosed:
                self._drop(stranger)
        for name, link in list(self._agents.items()):
            if now - link.heard_at > self._lease_seconds:
                self._lose(name, f"silent for {self._lease_seconds:g} s")
            elif link.wire.wants_write:
                self._flush(name, link)
        if now - self._beat_at >= _BEAT_SECONDS:
            self._beat_at = now
            for name in self.names:
                self.tell(name, {"type": "beat"})

    def close(self) -> None:
        """Close every connection."""
        for wire in [*self._strangers, *(link.wire for link in self._agents.values())]:
            wire.close()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError, WireClosed):  # it may have gone away again
            connection, _ = self._listener.accept()
            wire = Wire(connection, self._token, accepting=True)
            wire.flush()
            self._strangers.add(wire)
            self._selector.register(wire, selectors.EVENT_READ, lambda: self._read_stranger(wire))

    def _read_stranger(self, wire: Wire) -> None:
        if wire not in self._strangers:
            return
        try:
            frames = wire.receive()
        except WireClosed:
            self._drop(wire)
            return
        if not frames:
            return
        hello, *rest = frames
        if hello.get("type") != "hello":
            self._drop(wire)
            return
        name = f"{hello['name']}.{self._next_number}"
        self._next_number += 1
        self._strangers.discard(wire)
        self._agents[name] = _Link(wire, hello["pid"])
        self._selector.modify(wire, selectors.EVENT_READ, lambda: self._read(name))
        self._owner.agent_joined(name)
        for frame in rest:
            self._owner.agent_said(name, frame)

    def _drop(self, wire: Wire) -> None:
        self._strangers.discard(wire)
        self._selector.unregister(wire)
        wire.close()

    def _read(self, name: str) -> None:
        link = self._agents.get(name)
        if link is None:
            return  # lost by what was read from another agent a moment ago
        try:
            for frame in link.wire.receive():
                link.heard_at = time.monotonic()
                self._owner.agent_said(name, frame)
        except WireClosed as error:
            self._lose(name, str(error))

    def _flush(self, name: str, link: _Link) -> None:
        try:
            link.wire.flush()
        except WireClosed as error:
            self._lose(name, str(error))

    def _lose(self, name: str, reason: str) -> None:
        link = self._agents.pop(name, None)
        if link is None:
            return
        self._selector.unregister(link.wire)
        link.wire.close()
        self._owner.agent_lost(name, reason)
