"""How two ranks prove to each other that they hold the run's token, before any other byte is exchanged.

    dialer   -> acceptor   hello: magic, generation, world size, dialer's rank, acceptor's rank, nonce
    acceptor -> dialer     nonce, HMAC("acceptor", seat, both nonces)
    dialer   -> acceptor   HMAC("dialer", seat, both nonces)

HMAC-SHA256 under the token; the seat is (generation, world size, both ranks), the role stands first, so no
answer can be reflected or used again for another seat. Both sides are state machines without I/O, and read
exactly as many bytes as are due: what follows on the socket belongs to the exchange.

Covers membership, not secrecy or integrity of what follows: bytes travel in clear.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from dataclasses import dataclass

from openclaw_tasks.errors import RunError

_MAGIC = b"OCmesh1\n"
_SEAT = struct.Struct("<QIII")
_NONCE_BYTES = 32
_MAC_BYTES = 32
_HELLO_BYTES = len(_MAGIC) + _SEAT.size + _NONCE_BYTES


class HandshakeRefusedError(RunError):
    """The other side is not the member that is due here; the connection must be closed."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One link of one generation: the higher rank dials, the lower accepts."""

    generation: int
    world_size: int
    dialer: int
    acceptor: int

    def to_bytes(self) -> bytes:
        return _SEAT.pack(self.generation, self.world_size, self.dialer, self.acceptor)


class _Half:
    """Collects exactly the bytes that are due next."""

    def __init__(self, due: int) -> None:
        self._got = bytearray()
        self._due = due
        self.is_done = False

    @property
    def bytes_due(self) -> int:
        """How many bytes to read from the socket next, at most; 0 once done."""
        return 0 if self.is_done else self._due - len(self._got)

    def _take(self, data: bytes) -> bytes | None:
        self._got += data
        if len(self._got) < self._due:
            return None
        whole, self._got = bytes(self._got), bytearray()
        return whole


class DialerHandshake(_Half):
    """The higher rank's side. Send `hello` first."""

    def __init__(self, token: bytes, seat: Seat) -> None:
        super().__init__(_NONCE_BYTES + _MAC_BYTES)
        self._token = token
        self._seat = seat
        self._nonce = os.urandom(_NONCE_BYTES)

    @property
    def peer(self) -> int:
        return self._seat.acceptor

    @property
    def hello(self) -> bytes:
        return _MAGIC + self._seat.to_bytes() + self._nonce

    def feed(self, data: bytes) -> bytes:
        """Take at most `bytes_due` bytes; returns what to send. Raises HandshakeRefusedError."""
        answer = self._take(data)
        if answer is None:
            return b""
        nonces = self._nonce + answer[:_NONCE_BYTES]
        due = _proof(self._token, b"acceptor", self._seat, nonces)
        if not hmac.compare_digest(answer[_NONCE_BYTES:], due):
            raise HandshakeRefusedError(f"whoever listens for rank {self.peer} does not hold the run's token")
        self.is_done = True
        return _proof(self._token, b"dialer", self._seat, nonces)


class AcceptorHandshake(_Half):
    """The lower rank's side; `seat` is known once the hello was believed."""

    def __init__(self, token: bytes, generation: int, world_size: int, rank: int) -> None:
        super().__init__(_HELLO_BYTES)
        self._token = token
        self._expect = (generation, world_size, rank)
        self._nonce = os.urandom(_NONCE_BYTES)
        self._proof_due = b""
        self.seat: Seat | None = None

    @property
    def peer(self) -> int:
        assert self.seat is not None, "known only after the hello"
        return self.seat.dialer

    def feed(self, data: bytes) -> bytes:
        """Take at most `bytes_due` bytes; returns what to send. Raises HandshakeRefusedError."""
        whole = self._take(data)
        if self.seat is None:
            start = bytes(self._got[: len(_MAGIC)]) if whole is None else whole[: len(_MAGIC)]
            if not _MAGIC.startswith(start):
                raise HandshakeRefusedError("not a member's hello")
            return b"" if whole is None else self._answer(whole)
        if whole is not None:
            if not hmac.compare_digest(whole, self._proof_due):
                raise HandshakeRefusedError(f"rank {self.seat.dialer} does not hold the run's token")
            self.is_done = True
        return b""

    def _answer(self, hello: bytes) -> bytes:
        seat = Seat(*_SEAT.unpack_from(hello, len(_MAGIC)))
        generation, world_size, rank = self._expect
        if seat.generation != generation:
            raise HandshakeRefusedError(f"a dialer of generation {seat.generation}, this is {generation}")
        if (seat.world_size, seat.acceptor) != (world_size, rank) or not rank < seat.dialer < world_size:
            raise HandshakeRefusedError(f"{seat} is no link of rank {rank} among {world_size}")
        nonces = hello[-_NONCE_BYTES:] + self._nonce
        self._proof_due = _proof(self._token, b"dialer", seat, nonces)
        self._due = _MAC_BYTES
        self.seat = seat
        return self._nonce + _proof(self._token, b"acceptor", seat, nonces)


def _proof(token: bytes, role: bytes, seat: Seat, nonces: bytes) -> bytes:
    return hmac.digest(token, role + b"\0" + seat.to_bytes() + nonces, hashlib.sha256)
