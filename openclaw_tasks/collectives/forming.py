"""Making the links of one generation: the higher rank dials, both prove membership, strangers are dropped.

Peers enter a generation at slightly different times. A dialer that is early for its acceptor's process
waits in the listener's queue; one that meets an acceptor still forming an older generation is closed and
dials again. Connections left from older generations, with a wrong token, or that speak something else
(port scanners) are closed and change nothing.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Sequence

from openclaw_tasks.collectives.handshake import (
    AcceptorHandshake,
    DialerHandshake,
    HandshakeRefusedError,
    Seat,
)
from openclaw_tasks.collectives.transport import ExchangeTimeoutError, LinkBrokenError, OnIdle
from openclaw_tasks.collectives.waiting import POLL_MILLISECONDS, Watch

_FIRST_RETRY_SECONDS = 0.01
_LONGEST_RETRY_SECONDS = 0.2
_STRANGER_SECONDS = 5.0
_MAX_GUESTS = 128


class _Talk:
    """A connection whose handshake is under way."""

    def __init__(self, connection: socket.socket, handshake: DialerHandshake | AcceptorHandshake, since: float) -> None:
        self.socket = connection
        self.handshake = handshake
        self.since = since
        self.is_connecting = isinstance(handshake, DialerHandshake)

    def say(self, data: bytes) -> None:
        if data and self.socket.send(data) != len(data):
            raise HandshakeRefusedError("an empty send buffer did not take a handshake's message")

    def proceed(self) -> bool:
        """Go on as far as the socket allows; True when both sides have proven themselves.

        Raises OSError or HandshakeRefusedError when this connection is of no use.
        """
        if self.is_connecting:
            error = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, os.strerror(error))
            assert isinstance(self.handshake, DialerHandshake)
            self.is_connecting = False
            self.say(self.handshake.hello)
            return False
        try:
            data = self.socket.recv(self.handshake.bytes_due)
        except BlockingIOError:
            return False
        if not data:
            raise HandshakeRefusedError("closed in the handshake: of another generation, or another token")
        self.say(self.handshake.feed(data))
        return self.handshake.is_done


class Forming:
    """One rank's part in meshing one generation. Owns every socket until `form` has returned them."""

    def __init__(
        self,
        listener: socket.socket,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        generation: int,
        token: bytes,
    ) -> None:
        self._listener = listener
        self._rank = rank
        self._addresses = addresses
        self._generation = generation
        self._token = token
        self._poll = select.poll()
        self._talks: dict[int, _Talk] = {}  # by file number, oldest first
        self._dial_at = dict.fromkeys(range(rank), 0.0)  # peers to dial, on the watch
        self._tries = dict.fromkeys(range(rank), 0)
        self._troubles: dict[int, str] = {}  # why the last dial of a peer came to nothing
        self._done: dict[int, socket.socket] = {}
        self._peer_of: dict[int, int] = {}

    def form(self, deadline_seconds: float, on_idle: OnIdle) -> dict[int, socket.socket]:
        """Connected, authenticated, non-blocking sockets to all peers.

        Raises ExchangeTimeoutError naming the peers still missing after `deadline_seconds` in all,
        LinkBrokenError when a peer that was linked already is gone again, and what `on_idle` raises.
        """
        watch = Watch(on_idle)
        self._poll.register(self._listener, select.POLLIN)
        try:
            while len(self._done) < len(self._addresses) - 1:
                self._dial(watch.watched_seconds)
                events = self._poll.poll(self._milliseconds_to_wait(watch.watched_seconds))
                seconds = watch.advance()
                for file_number, event in events:
                    self._handle(file_number, event, seconds)
                watch.call_hook(nothing_was_ready=not events)
                self._drop_slow_strangers(seconds)
                if seconds > deadline_seconds:
                    raise ExchangeTimeoutError(self._missing(), seconds, self._story())
            done, self._done = self._done, {}
            return done
        finally:
            for talk in self._talks.values():
                talk.socket.close()
            for connection in self._done.values():
                connection.close()

    def _missing(self) -> list[int]:
        return [r for r in range(len(self._addresses)) if r != self._rank and r not in self._done]

    def _story(self) -> str:
        troubles = [f"rank {p}: {why}" for p, why in sorted(self._troubles.items()) if p not in self._done]
        return f"joining generation {self._generation}" + (f" ({'; '.join(troubles)})" if troubles else "")

    def _milliseconds_to_wait(self, seconds: float) -> float:
        soonest = min(self._dial_at.values(), default=seconds + 1.0)
        return min(float(POLL_MILLISECONDS), max(0.0, (soonest - seconds) * 1000))

    def _dial(self, seconds: float) -> None:
        for peer in [p for p, at in self._dial_at.items() if at <= seconds]:
            del self._dial_at[peer]
            host, port = self._addresses[peer]
            connection = socket.socket(family_of(host), socket.SOCK_STREAM)
            seat = Seat(self._generation, len(self._addresses), dialer=self._rank, acceptor=peer)
            prepare(connection)
            talk = self._watch_over(_Talk(connection, DialerHandshake(self._token, seat), seconds))
            try:
                connection.connect((host, port))
            except BlockingIOError:
                pass
            except OSError as error:
                self._drop(talk, seconds, error)

    def _handle(self, file_number: int, event: int, seconds: float) -> None:
        if file_number == self._listener.fileno():
            self._accept(seconds)
        elif file_number in self._talks:
            self._proceed(self._talks[file_number], seconds)
        elif file_number in self._peer_of:
            raise LinkBrokenError(self._peer_of[file_number], "it closed while the others were still joining")

    def _accept(self, seconds: float) -> None:
        for _ in range(_MAX_GUESTS):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            prepare(connection)
            handshake = AcceptorHandshake(self._token, self._generation, len(self._addresses), self._rank)
            talk = self._watch_over(_Talk(connection, handshake, seconds))
            self._proceed(talk, seconds)  # its hello is mostly there already

    def _proceed(self, talk: _Talk, seconds: float) -> None:
        try:
            is_done = talk.proceed()
        except (OSError, HandshakeRefusedError) as error:
            self._drop(talk, seconds, error)
            return
        if is_done:
            self._finish(talk, seconds)
        else:
            self._poll.register(talk.socket, select.POLLIN)

    def _finish(self, talk: _Talk, seconds: float) -> None:
        peer = talk.handshake.peer
        if peer in self._done:
            self._drop(talk, seconds)
            return
        file_number = talk.socket.fileno()
        del self._talks[file_number]
        self._done[peer] = talk.socket
        self._peer_of[file_number] = peer
        self._poll.register(file_number, select.POLLRDHUP)

    def _watch_over(self, talk: _Talk) -> _Talk:
        guests = [t for t in self._talks.values() if isinstance(t.handshake, AcceptorHandshake)]
        if len(guests) >= _MAX_GUESTS:
            self._drop(guests[0], talk.since)
        self._talks[talk.socket.fileno()] = talk
        self._poll.register(talk.socket, select.POLLOUT if talk.is_connecting else select.POLLIN)
        return talk

    def _drop(self, talk: _Talk, seconds: float, why: Exception | None = None) -> None:
        """Close a connection that came to nothing; one that we dialed is tried again after a while."""
        file_number = talk.socket.fileno()
        self._poll.unregister(file_number)
        del self._talks[file_number]
        talk.socket.close()
        if isinstance(talk.handshake, DialerHandshake):
            peer = talk.handshake.peer
            pause = min(_FIRST_RETRY_SECONDS * 2.0 ** self._tries[peer], _LONGEST_RETRY_SECONDS)
            self._tries[peer] += 1
            self._dial_at[peer] = seconds + pause
            self._troubles[peer] = str(why)

    def _drop_slow_strangers(self, seconds: float) -> None:
        for talk in list(self._talks.values()):
            if isinstance(talk.handshake, AcceptorHandshake) and seconds - talk.since > _STRANGER_SECONDS:
                self._drop(talk, seconds)


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def prepare(connection: socket.socket) -> None:
    """The options of every mesh socket. No keepalive and no TCP_USER_TIMEOUT: the first says nothing about
    a stopped process, the second cuts off a healthy peer that reads late."""
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
