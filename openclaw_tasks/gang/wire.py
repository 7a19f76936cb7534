"""The line between supervisor and agents: length-prefixed JSON over TCP, each side proving that it has the token.

Never blocks: frames that cannot be sent yet are queued, and what comes is read in whole frames. Until both have
proved themselves nothing but the proof is accepted, of a small size and within a few seconds, so a stranger who
connects (a port scanner, another run) costs nothing and sees nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import time
from collections import deque
from typing import Any

Frame = dict[str, Any]

_MAX_FRAME_BYTES = 64 << 20
_MAX_PROOF_BYTES = 1024
_NONCE_BYTES = 16
_RECEIVE_BYTES = 1 << 18
_MAX_RECEIVES = 16  # in one go: a fast sender must not keep the others waiting
_PROOF_SECONDS = 5.0


class WireClosed(Exception):
    """The other side has gone, or is not one of ours."""


class Wire:
    """One end of a connection. The accepting end proves itself last."""

    def __init__(self, connection: socket.socket, token: bytes, *, accepting: bool) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._token = token
        self._accepting = accepting
        self._peer_host = _peer_host(connection)
        self._nonce = os.urandom(_NONCE_BYTES)
        self._deadline = time.monotonic() + _PROOF_SECONDS
        self._in = bytearray()
        self._out: deque[memoryview] = deque()
        self._held: list[Frame] = []  # frames to send once the other side is proven
        self.is_open = False
        self._queue({"nonce": self._nonce.hex()})
        self._their_nonce: bytes | None = None

    @classmethod
    def dial(cls, address: tuple[str, int], token: bytes, timeout_seconds: float) -> Wire:
        """Connect to whoever listens at `address`. Raises OSError."""
        return cls(socket.create_connection(address, timeout=timeout_seconds), token, accepting=False)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether queued bytes wait for the socket."""
        return bool(self._out)

    @property
    def local_host(self) -> str:
        """The address by which the other side reaches this one."""
        return str(self._socket.getsockname()[0])

    @property
    def peer_host(self) -> str:
        """The other side's address."""
        return self._peer_host

    def send(self, frame: Frame) -> None:
        """Send `frame`, or queue it. Raises WireClosed."""
        if not self.is_open:
            self._held.append(frame)
            return
        self._queue(frame)
        self.flush()

    def flush(self) -> None:
        """Write what the socket takes. Raises WireClosed; before the proof only `receive` does that."""
        try:
            while self._out:
                sent = self._socket.send(self._out[0])
                if sent < len(self._out[0]):
                    self._out[0] = self._out[0][sent:]
                    return
                self._out.popleft()
        except BlockingIOError:
            return
        except OSError as error:
            if self.is_open:
                raise WireClosed(str(error)) from error
            self._out.clear()

    def receive(self) -> list[Frame]:
        """The whole frames that have come, of a bounded amount. Raises WireClosed, after the last whole frame."""
        end = self._fill()
        frames = []
        while (frame := self._next_frame()) is not None:
            if self.is_open:
                frames.append(frame)
            else:
                self._prove(frame)
        if end is not None and not frames:
            raise WireClosed(end)
        return frames

    def check_proof_deadline(self) -> None:
        """Raises WireClosed when the other side has not proved itself in time."""
        if not self.is_open and time.monotonic() > self._deadline:
            raise WireClosed("no proof of membership in time")

    def close(self) -> None:
        self._socket.close()

    def _fill(self) -> str | None:
        """Read what is there, from a stranger no more than a proof; why the stream has ended, if it has."""
        most = _RECEIVE_BYTES if self.is_open else _MAX_PROOF_BYTES
        try:
            for _ in range(_MAX_RECEIVES if self.is_open else 1):
                data = self._socket.recv(most)
                if not data:
                    return "the other side closed the connection"
                self._in += data
                if len(data) < most:
                    return None
        except BlockingIOError:
            return None
        except OSError as error:
            return str(error)
        return None

    def _next_frame(self) -> Frame | None:
        if len(self._in) < 4:
            return None
        length = int.from_bytes(self._in[:4], "big")
        if length > (_MAX_FRAME_BYTES if self.is_open else _MAX_PROOF_BYTES):
            raise WireClosed(f"a frame of {length} bytes")
        if len(self._in) < 4 + length:
            return None
        data = bytes(self._in[4 : 4 + length])
        del self._in[: 4 + length]
        try:
            frame = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise WireClosed("not a frame of ours") from error
        if not isinstance(frame, dict):
            raise WireClosed("not a frame of ours")
        return frame

    def _prove(self, frame: Frame) -> None:
        """One move of the handshake: nonces cross, the dialer proves itself, then the acceptor."""
        try:
            if self._their_nonce is None:
                self._their_nonce = _nonce_of(frame)
                if not self._accepting:
                    self._queue({"proof": self._mac(dialer=True)})
            elif hmac.compare_digest(str(frame["proof"]), self._mac(dialer=self._accepting)):
                if self._accepting:
                    self._queue({"proof": self._mac(dialer=False)})
                self.is_open = True
                for held in self._held:
                    self._queue(held)
                self._held.clear()
            else:
                raise WireClosed("a wrong token")
        except (KeyError, TypeError, ValueError) as error:
            raise WireClosed("not a proof of membership") from error
        self.flush()

    def _mac(self, *, dialer: bool) -> str:
        """The proof of one side, over both nonces in the order dialer, acceptor."""
        assert self._their_nonce is not None
        nonces = [self._their_nonce, self._nonce] if self._accepting else [self._nonce, self._their_nonce]
        role = b"dialer" if dialer else b"acceptor"
        return hmac.new(self._token, b"openclaw-wire\0" + role + b"".join(nonces), hashlib.sha256).hexdigest()

    def _queue(self, frame: Frame) -> None:
        data = json.dumps(frame, separators=(",", ":")).encode()
        assert len(data) <= _MAX_FRAME_BYTES, f"a frame of {len(data)} bytes: {frame.get('type')}"
        self._out.append(memoryview(len(data).to_bytes(4, "big") + data))


def _peer_host(connection: socket.socket) -> str:
    try:
        return str(connection.getpeername()[0])
    except OSError:
        return ""  # it has gone already, which the first read will tell


def _nonce_of(frame: Frame) -> bytes:
    nonce = bytes.fromhex(frame["nonce"])
    if len(nonce) != _NONCE_BYTES:
        raise ValueError(f"a nonce of {len(nonce)} bytes")
    return nonce
