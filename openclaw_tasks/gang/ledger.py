"""Which records are where, which group is put next and by whom. No I/O; time comes in as an argument."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

GROUP_BYTES = 16_000_000
MOST_GROUP_BYTES = 4 * GROUP_BYTES  # unless one record is larger
GROUP_SECONDS = 1.0
RETRY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Span:
    """An agent holds the final records of steps first..last."""

    first: int
    last: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Order:
    """Put steps first..last as one group."""

    agent: str
    first: int
    last: int


class Ledger:
    """Groups are put one after the other, each by one agent, in turn among those that hold its records."""

    def __init__(self, durable_step: int, group_steps: int) -> None:
        self.durable_step = durable_step
        self._group_steps = group_steps
        self._spans: dict[str, Span] = {}
        self._turn = 0
        self._in_flight: Order | None = None
        self._waiting_since: float | None = None
        self._not_before = 0.0
        self.urgent_through = 0  # put records up to this step without waiting for a full group

    @property
    def in_flight(self) -> Order | None:
        return self._in_flight

    @property
    def newest(self) -> int:
        """The newest final step that any agent holds, or the durable one."""
        return max([self.durable_step, *(span.last for span in self._spans.values())])

    def holds(self, agent: str, span: Span) -> None:
        """The agent reports what it holds."""
        self._spans[agent] = span

    def forget(self, agent: str) -> None:
        """The agent is gone: a group it was putting is put again by another."""
        self._spans.pop(agent, None)
        if self._in_flight is not None and self._in_flight.agent == agent:
            self._in_flight = None

    def forget_all(self) -> None:
        """Nothing is held by anybody any more, and nothing is urgent."""
        self.urgent_through = 0
        for agent in list(self._spans):
            self.forget(agent)

    def next_order(self, now: float) -> Order | None:
        """The group to put now, or None."""
        first = self.durable_step + 1
        if self._in_flight is not None or now < self._not_before or self.newest < first:
            return None
        if self._waiting_since is None:
            self._waiting_since = now
        able = sorted(agent for agent, span in self._spans.items() if span.first <= first <= span.last)
        if not able:
            return None
        agent = able[self._turn % len(able)]
        span = self._spans[agent]
        record_bytes = span.size_bytes / (span.last - span.first + 1)
        count = span.last - first + 1
        is_due = (
            count >= self._group_steps
            or count * record_bytes >= GROUP_BYTES
            or now - self._waiting_since >= GROUP_SECONDS
            or first <= self.urgent_through
        )
        if not is_due:
            return None
        self._in_flight = Order(agent, first, min(span.last, first + self._most_steps(record_bytes) - 1))
        return self._in_flight

    def _most_steps(self, record_bytes: float) -> int:
        """Of one group: as many as fill it, or as the job says; but whoever puts it holds it several times over."""
        fill, bound = (int(size // max(record_bytes, 1)) for size in (GROUP_BYTES, MOST_GROUP_BYTES))
        return max(1, min(max(self._group_steps, fill), bound))

    def done(self, last: int) -> None:
        """The group up to `last` is acknowledged."""
        self.durable_step = max(self.durable_step, last)
        self._in_flight = None
        self._waiting_since = None
        self._turn += 1

    def failed(self, now: float) -> None:
        """The put failed: another attempt, by the next agent, in a moment."""
        self._in_flight = None
        self._turn += 1
        self._not_before = now + RETRY_SECONDS

    def is_hopeless(self, agents: Collection[str], ended_at: int = 0) -> bool:
        """Whether the next record is held by nobody although later ones are: they can never be put.

        `ended_at`: the step after which all ranks have left, if they have: nobody will hold it any more.
        """
        first = self.durable_step + 1
        spans = [self._spans[agent] for agent in agents if agent in self._spans]
        later = ended_at >= first or any(span.last >= first for span in spans)
        return later and self._in_flight is None and not any(span.first <= first <= span.last for span in spans)
