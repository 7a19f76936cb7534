"""A full mesh of TCP connections among the ranks of one generation: one thread, one poll, no helper threads.

Every failure of a peer shows at once: a dead process as FIN or RST, one that speaks out of turn by its
headers, one that is frozen by its silence. Closing a mesh shows to all its peers in the same way, so one
rank's abort reaches the whole group without waiting for anybody's timeout.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from openclaw_tasks.collectives.forming import Forming, family_of
from openclaw_tasks.collectives.link import Link
from openclaw_tasks.collectives.transport import (
    Dynamic,
    ExchangeTimeoutError,
    LinkStats,
    OnIdle,
    ReceiveBuffer,
    SendBuffer,
)
from openclaw_tasks.collectives.waiting import POLL_MILLISECONDS, Watch

_QUEUE_LENGTH = 256
_NO_LIMIT = 1 << 62


class Listener:
    """This process's one listening socket: bound to a free port by the kernel, kept for the process's life.

    The port is never given back and asked for again, so nobody else can take it in between. Connections
    that arrive while no mesh is being formed wait in the kernel's queue.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self.socket = socket.create_server((host, 0), family=family_of(host), backlog=_QUEUE_LENGTH)
        self.socket.setblocking(False)
        self.port: int = self.socket.getsockname()[1]

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Mesh:
    """The `Transport` over TCP. Made by `connect`; used by one thread; useless after any exception."""

    def __init__(
        self, rank: int, world_size: int, generation: int, connections: Mapping[int, socket.socket]
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self.generation = generation
        self._links = {peer: Link(peer, connections[peer], generation) for peer in sorted(connections)}
        self._by_file_number = {link.file_number: link for link in self._links.values()}
        self._is_whole = True

    @classmethod
    def connect(
        cls,
        listener: Listener,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        generation: int,
        token: bytes,
        deadline_seconds: float,
        on_idle: OnIdle = None,
    ) -> Mesh:
        """Join the generation as `rank`; `addresses` are the listeners of all ranks, in rank order.

        Returns when there is a link to each peer that has proven to hold `token`. `deadline_seconds` bounds
        the whole of it. Raises ExchangeTimeoutError naming the ranks that did not come, LinkBrokenError
        when one came and went, and what `on_idle` raises; then nothing is left open but the listener.
        """
        assert 0 <= rank < len(addresses), (rank, len(addresses))
        assert token, "an empty token proves nothing"
        forming = Forming(listener.socket, rank, addresses, generation, token)
        return cls(rank, len(addresses), generation, forming.form(deadline_seconds, on_idle))

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def world_size(self) -> int:
        return self._world_size

    @property
    def links(self) -> Mapping[int, LinkStats]:
        return {peer: link.stats for peer, link in self._links.items()}

    def exchange(
        self,
        sends: Mapping[int, Sequence[SendBuffer]],
        receives: Mapping[int, Sequence[ReceiveBuffer | Dynamic]],
        *,
        deadline_seconds: float,
        on_idle: OnIdle = None,
        at_half: Callable[[], None] | None = None,
    ) -> dict[int, list[bytearray | None]]:
        """See `Transport.exchange`."""
        assert self._is_whole, "this mesh is closed, or broke in an earlier exchange: connect another"
        self._is_whole = False  # until this exchange has ended well
        watch = Watch(on_idle)
        active = {peer: self._links[peer] for peer in self._in_turn(sends.keys() | receives.keys())}
        total = 0
        for peer, link in active.items():
            total += link.begin(sends.get(peer, ()), receives.get(peer, ()), watch)
        half = _HalfMark(total // 2, at_half)
        self._move_all(list(active.values()), half, watch, deadline_seconds)
        self._is_whole = True
        received = {peer: link.end() for peer, link in active.items()}
        return {peer: received[peer] for peer in receives}

    def close(self) -> None:
        """See `Transport.close`."""
        self._is_whole = False
        for link in self._links.values():
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _in_turn(self, peers: set[int]) -> list[int]:
        """Each rank begins with its next neighbour, so that not all send to rank 0 first."""
        return sorted(peers, key=lambda peer: (peer - self._rank) % self._world_size)

    def _move_all(self, links: list[Link], half: _HalfMark, watch: Watch, deadline_seconds: float) -> None:
        poll = select.poll()
        waiting = 0
        for link in links:
            link.events = 0
            if link.is_sending:
                half.advance(link.send(half.budget, watch))
            waiting += _watch_link(poll, link)
        while waiting:
            ready = poll.poll(POLL_MILLISECONDS)
            watch.advance()
            for file_number, events in ready:
                link = self._by_file_number[file_number]
                _move(link, events, half, watch)
                waiting += _watch_link(poll, link)
            if watch.call_hook(nothing_was_ready=not ready):
                _check_silence(links, watch.watched_seconds, deadline_seconds)


class _HalfMark:
    """Calls `at_half` once, exactly when `remaining` more payload bytes have left."""

    def __init__(self, remaining: int, at_half: Callable[[], None] | None) -> None:
        self._remaining = remaining
        self._at_half = at_half
        self.advance(0)

    @property
    def budget(self) -> int:
        """How many payload bytes may leave before the mark has to be looked at again."""
        return _NO_LIMIT if self._at_half is None else self._remaining

    def advance(self, payload_bytes: int) -> None:
        self._remaining -= payload_bytes
        if self._remaining <= 0 and self._at_half is not None:
            call, self._at_half = self._at_half, None
            call()


def _move(link: Link, events: int, half: _HalfMark, watch: Watch) -> None:
    """Receive before sending: what a peer sent before it closed may be all that was due from it."""
    if events & ~select.POLLOUT and link.is_receiving:
        link.receive(watch)
    link.check_hangup(events)
    if events & ~select.POLLIN and link.is_sending:
        half.advance(link.send(half.budget, watch))


def _watch_link(poll: select.poll, link: Link) -> int:
    """Poll for what the link waits for now; returns the change in the number of links waited for."""
    before, link.events = link.events, link.events_due
    if link.events == before:
        return 0
    if link.events == 0:
        # Also against spinning: poll reports a hang-up whether asked for or not.
        poll.unregister(link.file_number)
        return -1
    poll.register(link.file_number, link.events)
    return 1 if before == 0 else 0


def _check_silence(links: list[Link], seconds: float, deadline_seconds: float) -> None:
    for link in links:
        if link.is_sending and link.has_drained():
            link.moved_at = seconds
    silent = [link.peer for link in links if link.events and seconds - link.moved_at > deadline_seconds]
    if silent:
        raise ExchangeTimeoutError(silent, deadline_seconds)
