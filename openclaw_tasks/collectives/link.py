"""One peer's socket and what an exchange still has to send and receive on it. Nothing here blocks."""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import termios
from collections import deque
from collections.abc import Sequence
from itertools import islice

import numpy as np

from openclaw_tasks.collectives.frames import HEADER_BYTES, OutOfStepError, checked_length, frame_header
from openclaw_tasks.collectives.transport import (
    Dynamic,
    LinkBrokenError,
    LinkStats,
    ReceiveBuffer,
    SendBuffer,
)
from openclaw_tasks.collectives.waiting import Watch

# One call's share: small enough that the hook and the other peers get their turn, large enough that
# calls cost nothing beside the copying.
_TURN_BYTES = 1 << 20
_VIEWS_PER_CALL = 16
_NEWEST_WEIGHS = 0.3
_TIMEABLE_BYTES = 256 * 1024
_INT = struct.Struct("i")
_LINGER_NOT = struct.pack("ii", 1, 0)


class Meter:
    """Bytes and busy seconds of one direction, and a smoothed bandwidth."""

    __slots__ = ("_burst_bytes", "_burst_from", "_first_bytes", "_last", "bandwidth", "num_bytes", "seconds")

    def __init__(self) -> None:
        self.num_bytes = 0
        self.seconds = 0.0
        self.bandwidth: float | None = None
        self._burst_bytes = 0
        self._first_bytes = 0
        self._burst_from = self._last = 0.0

    def count(self, moved: int, now: float) -> None:
        if self._burst_bytes == 0:
            self._burst_from, self._first_bytes = now, moved
        self._burst_bytes += moved
        self._last = now

    def end_burst(self) -> None:
        """Close an exchange. Bytes moved at the first instant took unknown time, so they do not count."""
        seconds, timed_bytes = self._last - self._burst_from, self._burst_bytes - self._first_bytes
        self.num_bytes += self._burst_bytes
        if timed_bytes >= _TIMEABLE_BYTES and seconds > 0:
            sample = timed_bytes / seconds
            old = sample if self.bandwidth is None else self.bandwidth
            self.bandwidth = old + _NEWEST_WEIGHS * (sample - old)
        if self._burst_bytes:
            self.seconds += seconds
        self._burst_bytes = 0


class Link:
    """An authenticated connection to `peer`, in step with it by exchange and message numbers."""

    def __init__(self, peer: int, connection: socket.socket, generation: int) -> None:
        self.peer = peer
        self.socket = connection
        self.file_number = connection.fileno()
        self.moved_at = 0.0  # on the watch of the exchange under way
        self._generation = generation
        self._sent = Meter()
        self._received = Meter()
        self._sends = 0
        self._receives = 0
        self._unacknowledged = 0
        self._out: deque[tuple[memoryview, bool]] = deque()
        self._slots: Sequence[ReceiveBuffer | Dynamic] = ()
        self._slot = 0
        self._header = memoryview(bytearray(HEADER_BYTES))
        self._in_header = True
        self._due = self._header  # what remains of the header or body being received
        self.received: list[bytearray | None] = []

    def begin(self, sends: Sequence[SendBuffer], receives: Sequence[ReceiveBuffer | Dynamic], watch: Watch) -> int:
        """Take an exchange's messages for this link; returns the payload bytes to send."""
        total = 0
        for message, buffer in enumerate(sends):
            view = flat_view(buffer)
            header = frame_header(self._generation, self._sends, message, view.nbytes)
            self._out.append((memoryview(header), False))
            if view.nbytes:
                self._out.append((view, True))
            total += view.nbytes
        self._slots, self._slot = receives, 0
        self.received = []
        self._sends += bool(sends)
        self._receives += bool(receives)
        self._unacknowledged = 0
        self.moved_at = watch.watched_seconds
        return total

    @property
    def is_sending(self) -> bool:
        return bool(self._out)

    @property
    def is_receiving(self) -> bool:
        return self._slot < len(self._slots)

    @property
    def is_busy(self) -> bool:
        return bool(self._out) or self.is_receiving

    @property
    def events_due(self) -> int:
        """What to poll for. A peer that will not read any more is as bad as one that is gone."""
        wanted = (select.POLLOUT if self._out else 0) | (select.POLLIN if self.is_receiving else 0)
        return wanted if self.is_receiving else wanted | select.POLLRDHUP

    def send(self, payload_budget: int, watch: Watch) -> int:
        """Hand the kernel what it takes, at most `payload_budget` payload bytes; returns how many it took."""
        batch: list[memoryview] = []
        room = min(payload_budget, _TURN_BYTES)
        for view, is_payload in islice(self._out, _VIEWS_PER_CALL):
            part = view[:room] if is_payload else view
            room -= len(part) if is_payload else 0
            batch.append(part)
            if room == 0:
                break
        try:
            taken = self.socket.sendmsg(batch)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._broken(error.strerror or repr(error)) from error
        self._sent.count(taken, watch.now)
        self.moved_at = watch.watched_seconds
        return self._drop_sent(taken)

    def _drop_sent(self, taken: int) -> int:
        payload = 0
        while taken:
            view, is_payload = self._out[0]
            part = min(taken, len(view))
            payload += part if is_payload else 0
            taken -= part
            if part == len(view):
                self._out.popleft()
            else:
                self._out[0] = (view[part:], is_payload)
        return payload

    def receive(self, watch: Watch) -> None:
        """Read what has arrived for this exchange, never beyond it."""
        total = 0
        while self.is_receiving and total < _TURN_BYTES:
            wanted = min(len(self._due), _TURN_BYTES)
            try:
                taken = self.socket.recv_into(self._due, wanted)
            except BlockingIOError:
                break
            except OSError as error:
                raise self._broken(error.strerror or repr(error)) from error
            if taken == 0:
                raise self._broken("it closed before it had sent everything due")
            total += taken
            self._due = self._due[taken:]
            if not self._due:
                self._next_due()
            elif taken < wanted:
                break
        if total:
            self._received.count(total, watch.now)
            self.moved_at = watch.watched_seconds

    def _next_due(self) -> None:
        """A header or a body is complete: find out what is due next."""
        if self._in_header:
            self._due = self._open_body()
            self._in_header = False
            if self._due:
                return
        self._slot += 1
        self._due, self._in_header = self._header, True

    def _open_body(self) -> memoryview:
        slot = self._slots[self._slot]
        try:
            length = checked_length(bytes(self._header), self._generation, self._receives - 1, self._slot)
        except OutOfStepError as error:
            raise self._broken(str(error)) from error
        if isinstance(slot, Dynamic):
            if length > slot.max_bytes:
                raise self._broken(f"a message of {length} bytes where at most {slot.max_bytes} were due")
            body = bytearray(length)
            self.received.append(body)
            return memoryview(body)
        view = flat_view(slot)
        if length != view.nbytes:
            raise self._broken(f"a message of {length} bytes where {view.nbytes} were due")
        self.received.append(None)
        return view

    def check_hangup(self, events: int) -> None:
        """Raise if the peer closed while it has still to read from us and nothing is due from it."""
        if self._out and not self.is_receiving and events & select.POLLRDHUP:
            raise self._broken("it closed before it had read everything sent")

    def has_drained(self) -> bool:
        """Whether the peer's kernel took bytes since the last look, though there was no room for new ones.

        A slow reader frees our send buffer long before poll calls it writable.
        """
        before = self._unacknowledged
        raw = fcntl.ioctl(self.file_number, termios.TIOCOUTQ, bytes(_INT.size))
        self._unacknowledged = int(_INT.unpack(raw)[0])
        return self._unacknowledged < before

    def end(self) -> list[bytearray | None]:
        """Close the exchange's books on this link; returns what `Transport.exchange` promises for it."""
        self._sent.end_burst()
        self._received.end_burst()
        received, self.received, self._slots = self.received, [], ()
        return received

    @property
    def stats(self) -> LinkStats:
        return LinkStats(
            bytes_sent=self._sent.num_bytes,
            bytes_received=self._received.num_bytes,
            seconds_sending=self._sent.seconds,
            seconds_receiving=self._received.seconds,
            send_bytes_per_second=self._sent.bandwidth,
            receive_bytes_per_second=self._received.bandwidth,
        )

    def close(self, *, abort: bool) -> None:
        """`abort`: by RST. A FIN waits behind all that the peer has not read yet, which may be for ever."""
        if abort and self.socket.fileno() >= 0:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self.socket.close()
        # An exchange that broke lets go of the caller's memory.
        self._out.clear()
        self._slots, self._due = (), self._header

    def _broken(self, reason: str) -> LinkBrokenError:
        return LinkBrokenError(self.peer, reason)


def flat_view(buffer: SendBuffer) -> memoryview:
    """The bytes of a C-contiguous buffer, in place."""
    view = buffer.data if isinstance(buffer, np.ndarray) else memoryview(buffer)
    # A view with a zero in its shape cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(b"")
