"""A rank as a process of its own, told what to do by lines of JSON; and the test's handle on it.

    {"join": {"rank": 1, "addresses": [...], "generation": 1, "deadline": 30}}
    {"turns": {"count": 5, "num_bytes": 1000, "deadline": 30, "strike": [turn, signal]}}   all to all
    {"close": {}}

Each is answered by {"ok": ...} or {"error": name, "peers": [...]}. A strike is the signal that the rank sends
itself when half of the payload of that turn has left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from openclaw_tasks.collectives.mesh import Listener, Mesh
from openclaw_tasks.collectives.transport import ExchangeTimeoutError, LinkBrokenError

TOKEN = b"the token of a run in a test"


class PeerProcess:
    """A started peer. It ends with the test whatever the test does: killed on exit, and by a closed stdin."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.address = ("127.0.0.1", int(self._read()["ok"]))

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, what: str, **how: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({what: how}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The answer to what it was told; waits for it."""
        return self._read()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def turn(
    mesh: Mesh,
    num_bytes: int,
    deadline: float,
    at_half: Callable[[], None] | None,
    on_idle: Callable[[], None] | None,
) -> None:
    """Send `num_bytes` of one's own rank to each other rank, and check what comes."""
    peers = [peer for peer in range(mesh.world_size) if peer != mesh.rank]
    payload = bytes([mesh.rank]) * num_bytes
    into = {peer: bytearray(num_bytes) for peer in peers}
    mesh.exchange(
        {peer: [payload] for peer in peers},
        {peer: [into[peer]] for peer in peers},
        deadline_seconds=deadline,
        at_half=at_half,
        on_idle=on_idle,
    )
    for peer in peers:
        assert into[peer] == bytes([peer]) * num_bytes


class Peer:
    """What runs in the process."""

    def __init__(self) -> None:
        self._listener = Listener()
        self._mesh: Mesh | None = None
        self._answer({"ok": self._listener.port})

    def serve(self) -> None:
        for line in sys.stdin:
            ((what, how),) = json.loads(line).items()
            try:
                getattr(self, f"do_{what}")(**how)
            except LinkBrokenError as error:
                self.do_close()
                self._answer({"error": "LinkBrokenError", "peers": [error.peer]})
            except ExchangeTimeoutError as error:
                self.do_close()
                self._answer({"error": "ExchangeTimeoutError", "peers": list(error.peers)})
            else:
                self._answer({"ok": what})

    def do_join(self, rank: int, addresses: list[tuple[str, int]], generation: int, deadline: float) -> None:
        where = [(host, port) for host, port in addresses]
        self._mesh = Mesh.connect(self._listener, rank, where, generation, TOKEN, deadline)

    def do_turns(self, count: int, num_bytes: int, deadline: float, strike: tuple[int, int] | None = None) -> None:
        assert self._mesh is not None
        for number in range(count):
            strikes = strike is not None and strike[0] == number
            turn(self._mesh, num_bytes, deadline, (lambda: self._strike(strike)) if strikes else None, None)

    def do_close(self) -> None:
        if self._mesh is not None:
            self._mesh.close()

    @staticmethod
    def _strike(strike: tuple[int, int] | None) -> None:
        assert strike is not None
        os.kill(os.getpid(), strike[1])

    @staticmethod
    def _answer(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    Peer().serve()
