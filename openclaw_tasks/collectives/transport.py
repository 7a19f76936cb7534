"""What a topology needs from a network: exchange buffers with peers, and be told at once when one is gone.

The TCP mesh (`mesh.py`) is one `Transport`; a device-side one can be another. Sends and receives of one
exchange go on at the same time, so no order of calls among the ranks can deadlock.

    RunError
    ├── LinkBrokenError        a peer closed, died or spoke out of turn
    └── ExchangeTimeoutError   peers that moved no byte within the deadline
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from openclaw_tasks.errors import RunError

if TYPE_CHECKING:
    from numpy.typing import NDArray

OnIdle: TypeAlias = Callable[[], None] | None
# C-contiguous memory, sent or filled in place. (numpy's arrays are no `Buffer` to a type checker on 3.11.)
SendBuffer: TypeAlias = "bytes | bytearray | memoryview | NDArray[Any]"
ReceiveBuffer: TypeAlias = "bytearray | memoryview | NDArray[Any]"


class LinkBrokenError(RunError):
    """The link to `peer` is gone: closed, reset, or no longer in step with ours."""

    def __init__(self, peer: int, reason: str) -> None:
        super().__init__(f"link to rank {peer} broke: {reason}; close this mesh and join the next generation")
        self.peer = peer
        self.reason = reason


class ExchangeTimeoutError(RunError):
    """None of `peers` moved a byte for `seconds`, while others may have."""

    def __init__(self, peers: Iterable[int], seconds: float = 0.0, doing: str = "exchange") -> None:
        self.peers = tuple(sorted(peers))
        self.seconds = seconds
        names = ", ".join(map(str, self.peers))
        super().__init__(
            f"{doing}: no progress with rank(s) {names} in {seconds:.1f} s; "
            "close this mesh and join the next generation"
        )


@dataclass(frozen=True, slots=True)
class Dynamic:
    """A receive whose length the sender decides; more than `max_bytes` breaks the link."""

    max_bytes: int


@dataclass(frozen=True, slots=True)
class LinkStats:
    """What one link has carried, measured in passing.

    Bytes count payload and headers. Seconds count from an exchange's first byte in that direction to its
    last, so they hold neither the wait for a peer that still computes nor the time between exchanges. A
    bandwidth is an average (newest weighs 0.3) of the exchanges long enough to be timed, None before the
    first. Sending is timed to the kernel's buffer: the peer's receiving side is the better measure.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    seconds_sending: float = 0.0
    seconds_receiving: float = 0.0
    send_bytes_per_second: float | None = None
    receive_bytes_per_second: float | None = None


class Transport(Protocol):
    """A group of ranks that can exchange buffers. Used by one thread."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def links(self) -> Mapping[int, LinkStats]:
        """Per peer, what its link has carried."""
        ...

    def exchange(
        self,
        sends: Mapping[int, Sequence[SendBuffer]],
        receives: Mapping[int, Sequence[ReceiveBuffer | Dynamic]],
        *,
        deadline_seconds: float,
        on_idle: OnIdle = None,
        at_half: Callable[[], None] | None = None,
    ) -> dict[int, list[bytearray | None]]:
        """Send and receive everything named, in order per peer; both sides must name the same messages.

        Returns per peer one item a receive: None where a buffer was given (it is filled), the message
        where `Dynamic` was. Buffers to send may be changed as soon as this returns. `on_idle` is called
        whenever nothing was ready for 20 ms, and at least each 50 ms; it may raise to abort. `at_half` is
        called once, when half of the payload bytes to send have left (at the start if there are none).

        `deadline_seconds` bounds the time in which a peer moves no byte, not the exchange. Raises
        LinkBrokenError and ExchangeTimeoutError; after any exception only `close` may be called, and the
        receive buffers hold anything.
        """
        ...

    def close(self) -> None:
        """End all links; peers see it at once. May be called again."""
        ...
