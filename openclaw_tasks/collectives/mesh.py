"""A full mesh of TCP connections among the ranks of one generation: one thread, one poll, no helper threads.

Every failure of a peer shows at once: a dead process as FIN or RST, one that speaks out of turn by its
headers, one that is frozen by its silence. Closing a mesh shows to all its peers in the same way, so one
rank's abort reaches the whole group without waiting for anybody's timeout.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from openclaw_tasks.collectives.exchange import Exchange, HalfMark
from openclaw_tasks.collectives.forming import Forming, family_of
from openclaw_tasks.collectives.link import Link
from openclaw_tasks.collectives.transport import Dynamic, LinkStats, OnIdle, ReceiveBuffer, SendBuffer
from openclaw_tasks.collectives.waiting import Watch

_QUEUE_LENGTH = 256


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

    def __init__(self, rank: int, world_size: int, generation: int, connections: Mapping[int, socket.socket]) -> None:
        self._rank = rank
        self._world_size = world_size
        self.generation = generation
        self._links = {peer: Link(peer, connections[peer], generation) for peer in sorted(connections)}
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
        assert sends.keys() | receives.keys() <= self._links.keys(), (sorted(sends), sorted(receives))
        watch = Watch(on_idle)
        total = 0
        for peer, link in self._links.items():
            total += link.begin(sends.get(peer, ()), receives.get(peer, ()), watch)
        half = HalfMark(total // 2, at_half)
        Exchange(self._in_turn(), half, watch, deadline_seconds).run()
        self._is_whole = True
        received = {peer: link.end() for peer, link in self._links.items()}
        return {peer: received[peer] for peer in receives}

    def close(self) -> None:
        """See `Transport.close`. After exchanges that ended well, what was sent still arrives."""
        for link in self._links.values():
            link.close(abort=not self._is_whole)
        self._is_whole = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _in_turn(self) -> list[Link]:
        """Each rank begins with its next neighbour, so that not all send to rank 0 first."""
        peers = sorted(self._links, key=lambda peer: (peer - self._rank) % self._world_size)
        return [self._links[peer] for peer in peers]
