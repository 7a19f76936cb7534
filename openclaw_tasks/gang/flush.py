"""What an agent puts on its own when the flow's process is gone: the final records that are not durable yet."""

from __future__ import annotations

import sys
from typing import Any

from openclaw_tasks.gang.putter import Outcome

# An attempt number of its own: the supervisor's putters count from 0, and stripes of two never mix.
_ATTEMPT = 1000


class Flush:
    """Decides what to put. A few agents do it, each as an attempt of its own: one that dies as well costs nothing."""

    def __init__(self) -> None:
        self.rank: int | None = None  # of this agent's rank in the newest formation
        self.next_group: dict[str, Any] | None = None  # the spec that the log goes on with

    def due(self, span: tuple[int, int, int] | None, redundancy: int) -> dict[str, Any] | None:
        """The group to put now of the records in `span` (first and last step, bytes); None when all is done."""
        spec = self.next_group
        if span is None or spec is None or self.rank is None or self.rank > redundancy:
            return None
        first, last, _ = span
        if first > spec["first"]:
            print(f"steps {spec['first']} to {first - 1} are not held here: nothing to flush", file=sys.stderr)
            return None
        return {**spec, "last": last, "attempt": _ATTEMPT + self.rank}

    def done(self, outcome: Outcome) -> bool:
        """A group was put, or not. Returns whether to go on."""
        print(f"flush: {outcome.frame()}", file=sys.stderr)
        if outcome.group is None:
            # One that the supervisor had still ordered is put again as our own; our own is not tried twice.
            return bool(outcome.spec["attempt"] < _ATTEMPT)
        ref = outcome.group.ref
        assert self.next_group is not None
        self.next_group = {**self.next_group, "seq": ref.seq + 1, "first": ref.last + 1, "previous": ref.digest}
        return True
