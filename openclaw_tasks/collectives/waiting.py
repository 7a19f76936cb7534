"""How a mesh waits: the caller's hook is called often, and a peer's silence is timed fairly."""

from __future__ import annotations

from time import monotonic

from openclaw_tasks.collectives.transport import OnIdle

POLL_MILLISECONDS = 20
_HOOK_SECONDS = 0.05
_LONGEST_STRIDE_SECONDS = 0.1


class Watch:
    """A clock that runs only while this process looks at its sockets.

    If this process itself was stopped or starved for a minute, that minute says nothing about its peers:
    one stride counts for at most 0.1 s. So a deadline may come later than set, never sooner.
    """

    def __init__(self, on_idle: OnIdle) -> None:
        self._on_idle = on_idle
        self.now = monotonic()
        self.watched_seconds = 0.0
        self._hook_due = self.now + _HOOK_SECONDS

    def advance(self) -> float:
        """Take the time after a poll; returns `watched_seconds`."""
        now = monotonic()
        self.watched_seconds += min(now - self.now, _LONGEST_STRIDE_SECONDS)
        self.now = now
        return self.watched_seconds

    def call_hook(self, nothing_was_ready: bool) -> bool:
        """Call `on_idle` if it is due, and say whether it was due. What it raises goes through."""
        if not nothing_was_ready and self.now < self._hook_due:
            return False
        if self._on_idle is not None:
            self._on_idle()
        self._hook_due = monotonic() + _HOOK_SECONDS
        return True
