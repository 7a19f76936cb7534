"""The line between supervisor and agents, over real sockets."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
from collections.abc import Callable, Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from openclaw_tasks.gang import wire as wire_module
from openclaw_tasks.gang.wire import Frame, Wire, WireClosed

TOKEN = b"t" * 32
PATIENCE_SECONDS = 20.0


class Door:
    """A listener on a free port, as the supervisor has one."""

    def __init__(self, token: bytes = TOKEN) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.socket.getsockname()[:2]
        self._token = token
        self._opened: list[Wire] = []

    def accept(self) -> Wire:
        connection, _ = self.socket.accept()
        self._opened.append(Wire(connection, self._token, accepting=True))
        self._opened[-1].flush()
        return self._opened[-1]

    def close(self) -> None:
        for opened in self._opened:
            opened.close()
        self.socket.close()


@pytest.fixture
def door() -> Iterator[Door]:
    listening = Door()
    yield listening
    listening.close()


@pytest.fixture
def stranger(door: Door) -> Iterator[socket.socket]:
    with socket.create_connection(door.address) as connection:
        yield connection


@contextlib.contextmanager
def dialed(door: Door, token: bytes = TOKEN) -> Iterator[Wire]:
    wire = Wire.dial(door.address, token, timeout_seconds=PATIENCE_SECONDS)
    yield wire
    wire.close()


def pump(wires: list[Wire], until: Callable[[], bool]) -> dict[Wire, list[Frame]]:
    """Move frames both ways as the event loops do; what came for each. What `receive` raises goes through."""
    came: dict[Wire, list[Frame]] = {wire: [] for wire in wires}
    while not until():
        writers = [wire for wire in wires if wire.wants_write]
        readable, writable, _ = select.select(wires, writers, [], PATIENCE_SECONDS)
        assert readable or writable, "nothing moves any more"
        for wire in writable:
            wire.flush()
        for wire in readable:
            came[wire] += wire.receive()
    return came


def frame_bytes(frame: object) -> bytes:
    data = json.dumps(frame).encode()
    return struct.pack(">I", len(data)) + data


def must_close(wire: Wire) -> str:
    """The reason for which the wire is given up."""
    with pytest.raises(WireClosed) as caught:
        read_to_the_end(wire)
    assert not wire.is_open
    return str(caught.value)


def read_to_the_end(wire: Wire) -> None:
    while True:
        assert select.select([wire], [], [], PATIENCE_SECONDS)[0], "it stays open"
        assert wire.receive() == [], "a stranger was believed"


# Those who belong together


def test_both_sides_prove_the_token_and_then_talk(door: Door) -> None:
    with dialed(door) as agent:
        supervisor = door.accept()
        agent.send({"type": "hello"})
        supervisor.send({"type": "welcome"})
        assert not agent.is_open, "what is sent before the proof waits"
        came: dict[Wire, list[Frame]] = {agent: [], supervisor: []}
        while not (came[agent] and came[supervisor]):
            for wire, frames in pump([agent, supervisor], until=some_rounds(1)).items():
                came[wire] += frames

        assert came[agent] == [{"type": "welcome"}]
        assert came[supervisor] == [{"type": "hello"}]
        assert agent.is_open
        assert supervisor.is_open
        assert agent.local_host == supervisor.peer_host == "127.0.0.1"


def some_rounds(count: int) -> Callable[[], bool]:
    left = iter([False] * count)
    return lambda: next(left, True)


@contextlib.contextmanager
def talking(door: Door) -> Iterator[tuple[Wire, Wire]]:
    with dialed(door) as agent:
        supervisor = door.accept()
        pump([agent, supervisor], until=lambda: agent.is_open and supervisor.is_open)
        yield agent, supervisor


def test_frames_arrive_whole_and_in_order(door: Door) -> None:
    with talking(door) as (agent, supervisor):
        sent = [{"n": n, "text": "é" * n} for n in range(300)]
        for frame in sent:
            agent.send(frame)
        got: list[Frame] = []
        while len(got) < len(sent):
            got += pump([agent, supervisor], until=some_rounds(1))[supervisor]

        assert got == sent


def test_frames_split_at_every_byte_are_put_together(door: Door) -> None:
    """Also the proofs, and the first frame right behind the proof."""
    with dialed(door) as agent:
        supervisor = door.accept()
        agent.send({"type": "hello", "name": "näme"})
        got: list[Frame] = []
        # The agent's bytes go one by one: its own socket is used, so the kernel cannot join them before they are read.
        while not got:
            if agent._out:
                first = agent._out[0]
                agent._socket.send(first[:1])
                if len(first) > 1:
                    agent._out[0] = first[1:]
                else:
                    agent._out.popleft()
                assert select.select([supervisor], [], [], PATIENCE_SECONDS)[0]
            if select.select([supervisor], [], [], 0)[0]:
                got += supervisor.receive()
            if select.select([agent], [], [], 0)[0]:
                agent.receive()

        assert got == [{"type": "hello", "name": "näme"}]


def test_a_big_frame_to_a_slow_reader_waits_in_the_queue_and_blocks_nobody(door: Door) -> None:
    with talking(door) as (agent, supervisor):
        big = {"type": "spare-done", "data": "x" * 12_000_000}
        supervisor.send(big)
        supervisor.send({"type": "after"})
        assert supervisor.wants_write, "the reader has not read yet"

        got: list[Frame] = []
        while len(got) < 2:
            got += pump([agent, supervisor], until=some_rounds(1))[agent]

        assert got == [big, {"type": "after"}]
        assert not supervisor.wants_write


def test_one_read_is_bounded_so_that_a_fast_sender_leaves_time_for_others(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_module, "_RECEIVE_BYTES", 100)
    with talking(door) as (agent, supervisor):
        for n in range(200):
            agent.send({"n": n})
        assert select.select([supervisor], [], [], PATIENCE_SECONDS)[0]

        at_once = supervisor.receive()

        assert 0 < len(at_once) < 200
        rest: list[Frame] = []
        while len(rest) < 200 - len(at_once):
            rest += supervisor.receive()
        assert [frame["n"] for frame in at_once + rest] == list(range(200))


def test_frames_that_came_before_the_end_are_told_before_it(door: Door) -> None:
    with talking(door) as (agent, supervisor):
        agent.send({"type": "records", "last": 7})
        agent.close()
        assert select.select([supervisor], [], [], PATIENCE_SECONDS)[0]

        assert supervisor.receive() == [{"type": "records", "last": 7}]
        with pytest.raises(WireClosed, match="closed the connection"):
            supervisor.receive()


def test_a_connection_that_is_reset_says_so(door: Door) -> None:
    with talking(door) as (agent, supervisor):
        agent._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        agent.close()
        assert select.select([supervisor], [], [], PATIENCE_SECONDS)[0]

        with pytest.raises(WireClosed):
            supervisor.receive()
        with pytest.raises(WireClosed):
            supervisor.send({"type": "beat"})


def test_after_the_proof_the_deadline_is_of_no_concern(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_module, "_PROOF_SECONDS", -1.0)
    with talking(door) as (_, supervisor):
        supervisor.check_proof_deadline()


# Those who do not


def test_a_wrong_token_is_refused_by_the_side_that_accepts(door: Door) -> None:
    with dialed(door, token=b"w" * 32) as intruder:
        supervisor = door.accept()
        supervisor.send({"type": "welcome", "job": "secret"})
        with pytest.raises(WireClosed, match="a wrong token"):
            pump([intruder, supervisor], until=lambda: False)

        assert not supervisor.is_open
        supervisor.close()
        assert must_close(intruder) == "the other side closed the connection"


def test_a_supervisor_that_does_not_know_the_token_is_refused_by_the_agent(door: Door) -> None:
    """Whoever listens there now sees a proof over its own nonce and nothing more."""
    with dialed(door) as agent, contextlib.ExitStack() as stack:
        connection, _ = door.socket.accept()
        stack.enter_context(connection)
        agent.send({"type": "hello", "secret": "s"})
        agent.flush()
        nonce = "00" * 16
        connection.sendall(frame_bytes({"nonce": nonce}) + frame_bytes({"proof": "0" * 64}))

        assert must_close(agent) == "a wrong token"
        connection.settimeout(PATIENCE_SECONDS)
        agent.close()
        seen = b""
        while data := connection.recv(4096):
            seen += data
        assert b"nonce" in seen
        assert b"hello" not in seen


def test_a_proof_cannot_be_sent_back_to_the_one_it_came_from(door: Door) -> None:
    """A mirror proves nothing: the two sides' proofs differ by role."""
    with dialed(door) as agent, contextlib.ExitStack() as stack:
        mirror, _ = door.socket.accept()
        stack.enter_context(mirror)
        mirror.settimeout(PATIENCE_SECONDS)
        agent.flush()
        mirror.sendall(mirror.recv(4096))
        assert select.select([agent], [], [], PATIENCE_SECONDS)[0]
        agent.receive()
        mirror.sendall(mirror.recv(4096))

        assert must_close(agent) == "a wrong token"


@pytest.mark.parametrize(
    "talk",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack(">I", 5) + b"hello",
        struct.pack(">I", 3) + b"\xff\xfe\xfd",
        struct.pack(">I", 0),
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 1000) + b"[" * 1000,
        frame_bytes({"nonce": 5}),
        frame_bytes({"nonce": "zz"}),
        frame_bytes({"nonce": ""}),
        frame_bytes({"nonce": "00" * 15}),
        frame_bytes({"proof": "00"}),
        frame_bytes({"type": "hello", "pid": 1, "name": "intruder"}),
        frame_bytes({"nonce": "00" * 16}) + frame_bytes({"proof": None}),
        frame_bytes({"nonce": "00" * 16}) + frame_bytes({"proof": "é" * 64}),
        frame_bytes({"nonce": "00" * 16}) + frame_bytes({}),
        struct.pack(">I", 1025),
        struct.pack(">I", 0xFFFF_FFFF),
    ],
    ids=lambda talk: repr(talk[:24]),
)
def test_who_speaks_something_else_is_dropped(door: Door, stranger: socket.socket, talk: bytes) -> None:
    supervisor = door.accept()
    stranger.sendall(talk)

    must_close(supervisor)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_no_garbage_opens_a_wire_or_raises_anything_else(data: bytes, framed: bool) -> None:
    with contextlib.closing(Door()) as door, socket.create_connection(door.address) as stranger:
        stranger.sendall(struct.pack(">I", len(data)) + data if framed else data)
        stranger.shutdown(socket.SHUT_WR)

        must_close(door.accept())


def test_a_stranger_that_floods_is_read_no_further_than_a_proof(door: Door, stranger: socket.socket) -> None:
    supervisor = door.accept()
    stranger.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            stranger.send(b"\0\0\4\0" + b"x" * 65_536)

    must_close(supervisor)
    assert len(supervisor._in) <= 2048


def test_a_silent_stranger_is_dropped_at_the_deadline(
    door: Door, stranger: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = door.accept()
    patient.check_proof_deadline()
    assert patient.receive() == []

    monkeypatch.setattr(wire_module, "_PROOF_SECONDS", -1.0)
    with socket.create_connection(door.address):
        supervisor = door.accept()
        with pytest.raises(WireClosed, match="no proof of membership in time"):
            supervisor.check_proof_deadline()


def test_a_stranger_that_stops_half_way_through_a_proof_is_dropped_at_the_deadline(
    door: Door, stranger: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_module, "_PROOF_SECONDS", -1.0)
    supervisor = door.accept()
    stranger.sendall(frame_bytes({"nonce": "00" * 16})[:-5])
    assert select.select([supervisor], [], [], PATIENCE_SECONDS)[0]

    assert supervisor.receive() == []
    with pytest.raises(WireClosed):
        supervisor.check_proof_deadline()


def test_a_stranger_that_is_gone_before_it_is_accepted_hurts_nobody(door: Door) -> None:
    """A port scanner: connect, reset. Making the wire, flushing and sending raise nothing; reading tells it."""
    scanner = socket.create_connection(door.address)
    scanner.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    scanner.close()
    assert select.select([door.socket], [], [], PATIENCE_SECONDS)[0]

    supervisor = door.accept()
    supervisor.flush()
    supervisor.send({"type": "beat"})

    must_close(supervisor)


def test_after_the_proof_an_oversized_or_broken_frame_ends_the_wire(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    for data in (struct.pack(">I", (64 << 20) + 1), struct.pack(">I", 4) + b"nope"):
        with talking(door) as (agent, supervisor):
            agent._socket.sendall(data)
            assert select.select([supervisor], [], [], PATIENCE_SECONDS)[0]
            with pytest.raises(WireClosed):
                supervisor.receive()


def test_a_frame_that_no_reader_would_take_is_our_own_mistake(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    with talking(door) as (agent, _):
        monkeypatch.setattr(wire_module, "_MAX_FRAME_BYTES", 1000)
        with pytest.raises(AssertionError, match="a frame of 1024 bytes: big"):
            agent.send({"type": "big", "data": "x" * 1000})
