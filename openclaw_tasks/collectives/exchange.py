"""One exchange over the links of a mesh: everything at once, in one poll loop.

A link whose messages have all moved is only watched for a hang-up. Its peer may leave (it may have finished
its last exchange), and what others still send counts as before; but if they fall silent then, the peer that
left has most likely given up on the very rank that we wait for, and we give it up soon, too.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence

from openclaw_tasks.collectives.link import Link
from openclaw_tasks.collectives.transport import ExchangeTimeoutError
from openclaw_tasks.collectives.waiting import POLL_MILLISECONDS, Watch

_SILENCE_AFTER_A_HANGUP_SECONDS = 2.0
_NO_LIMIT = 1 << 62


class HalfMark:
    """Calls `at_half` once, exactly when `remaining` more payload bytes have left (none: at once)."""

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


class Exchange:
    """Moves what the links have begun. `links` in the order in which to serve them first."""

    def __init__(self, links: Sequence[Link], half: HalfMark, watch: Watch, deadline_seconds: float) -> None:
        self._links = {link.file_number: link for link in links}
        self._half = half
        self._watch = watch
        self._deadline_seconds = deadline_seconds
        self._poll = select.poll()
        self._polled: dict[int, int] = {}
        self._busy = 0
        self._hangup_at: float | None = None  # on the watch: a peer that was through with us has closed

    def run(self) -> None:
        """Returns when all has moved. Raises LinkBrokenError, ExchangeTimeoutError, what the hooks raise."""
        for link in self._links.values():
            if link.is_sending:
                self._half.advance(link.send(self._half.budget, self._watch))
            self._busy += link.is_busy
            self._poll_for(link, link.events_due)
        while self._busy:
            ready = self._poll.poll(POLL_MILLISECONDS)
            self._watch.advance()
            for file_number, events in ready:
                self._serve(self._links[file_number], events)
            if self._watch.call_hook(nothing_was_ready=not ready):
                self._check_silence()

    def _serve(self, link: Link, events: int) -> None:
        if not link.is_busy:
            # Not again: poll reports a hang-up for as long as it is asked.
            self._poll_for(link, 0)
            self._hangup_at = self._watch.watched_seconds
            return
        # Receive before sending: what a peer sent before it closed may be all that was due from it.
        if events & ~select.POLLOUT and link.is_receiving:
            link.receive(self._watch)
        link.check_hangup(events)
        if events & ~select.POLLIN and link.is_sending:
            self._half.advance(link.send(self._half.budget, self._watch))
        self._busy -= not link.is_busy
        self._poll_for(link, link.events_due)

    def _poll_for(self, link: Link, events: int) -> None:
        if self._polled.get(link.file_number) == events:
            return
        self._polled[link.file_number] = events
        if events:
            self._poll.register(link.file_number, events)
        else:
            self._poll.unregister(link.file_number)

    def _check_silence(self) -> None:
        now = self._watch.watched_seconds
        busy = [link for link in self._links.values() if link.is_busy]
        for link in busy:
            if link.is_sending and link.has_drained():
                link.moved_at = now
        silent = [link.peer for link in busy if now - link.moved_at > self._deadline_seconds]
        if silent:
            raise ExchangeTimeoutError(silent, self._deadline_seconds)
        if self._hangup_at is not None:
            since = now - _SILENCE_AFTER_A_HANGUP_SECONDS
            silent = [link.peer for link in busy if max(link.moved_at, self._hangup_at) < since]
            if silent:
                raise ExchangeTimeoutError(silent, _SILENCE_AFTER_A_HANGUP_SECONDS, "exchange that others left")
