"""Ranks as real processes that are killed, stopped and slowed down in the middle of an exchange."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator

import pytest
from mesh_peer import TOKEN, PeerProcess, turn

from openclaw_tasks.collectives.handshake import DialerHandshake, Seat
from openclaw_tasks.collectives.mesh import Listener, Mesh
from openclaw_tasks.collectives.transport import ExchangeTimeoutError, LinkBrokenError

SECONDS = 600.0  # a deadline beyond the test's own


@contextlib.contextmanager
def processes(count: int) -> Iterator[tuple[Listener, list[PeerProcess]]]:
    """The test's own listener (it is rank 0), and `count` peers."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context(Listener()), [stack.enter_context(PeerProcess()) for _ in range(count)]


def join(listener: Listener, peers: list[PeerProcess], generation: int = 1) -> Mesh:
    addresses = [(listener.host, listener.port), *(peer.address for peer in peers)]
    for rank, peer in enumerate(peers, start=1):
        peer.tell("join", rank=rank, addresses=addresses, generation=generation, deadline=SECONDS)
    mesh = Mesh.connect(listener, 0, addresses, generation, TOKEN, SECONDS)
    assert [peer.answer() for peer in peers] == [{"ok": "join"}] * len(peers)
    return mesh


def turns(mesh: Mesh, count: int, num_bytes: int, deadline: float = SECONDS, on_idle=None) -> None:
    for _ in range(count):
        turn(mesh, num_bytes, deadline, None, on_idle)


@pytest.mark.parametrize("num_bytes", [1000, 8_000_000])
def test_rank_killed_in_the_middle_of_sending_is_seen_by_all(num_bytes: int) -> None:
    """By its closed sockets, or by those of a rank that saw them; nobody waits out the deadline
    (meta-pytorch/torchft#164)."""
    with processes(3) as (listener, peers), join(listener, peers) as mesh:
        for peer in peers:
            strike = [2, signal.SIGKILL] if peer is peers[2] else None
            peer.tell("turns", count=5, num_bytes=num_bytes, deadline=SECONDS, strike=strike)
        with pytest.raises(LinkBrokenError):
            turns(mesh, 5, num_bytes)
        mesh.close()
        assert [peer.answer()["error"] for peer in peers[:2]] == ["LinkBrokenError"] * 2


def test_rank_killed_while_others_wait_for_it_is_seen() -> None:
    with processes(1) as (listener, peers), join(listener, peers) as mesh:
        with pytest.raises(LinkBrokenError) as caught:
            turns(mesh, 1, 1000, on_idle=lambda: peers[0].signal(signal.SIGKILL))
        assert caught.value.peer == 1


def test_survivors_mesh_again_through_the_same_listeners() -> None:
    """Ranks are numbered anew; connections left in the listeners' queues do no harm."""
    with processes(3) as (listener, peers):
        with join(listener, peers) as mesh:
            for peer in peers:
                strike = [1, signal.SIGKILL] if peer is peers[0] else None
                peer.tell("turns", count=3, num_bytes=100_000, deadline=SECONDS, strike=strike)
            with pytest.raises(LinkBrokenError):
                turns(mesh, 3, 100_000)
        survivors = peers[1:]
        assert [peer.answer()["error"] for peer in survivors] == ["LinkBrokenError"] * 2
        with join(listener, survivors, generation=2) as mesh:
            for peer in survivors:
                peer.tell("turns", count=3, num_bytes=100_000, deadline=SECONDS)
            turns(mesh, 3, 100_000)
            assert [peer.answer() for peer in survivors] == [{"ok": "turns"}] * 2


@pytest.mark.parametrize("num_bytes", [1000, 3_000_000])
def test_stopped_rank_is_named_at_the_deadline(num_bytes: int) -> None:
    """Its kernel goes on acknowledging, so only the missing progress tells (meta-pytorch/torchft#164). When
    one rank has given up, the others do not wait out their own deadlines: they blame the same rank. Not even
    when the one that left was a turn ahead, with more of it on the way than they have room to take in."""
    with processes(2) as (listener, peers), join(listener, peers) as mesh:
        peers[0].tell("turns", count=3, num_bytes=num_bytes, deadline=SECONDS)
        peers[1].tell("turns", count=3, num_bytes=num_bytes, deadline=SECONDS, strike=[1, signal.SIGSTOP])
        with pytest.raises(ExchangeTimeoutError) as caught:
            turns(mesh, 3, num_bytes, deadline=1.0)
        assert 2 in caught.value.peers
        mesh.close()
        assert peers[0].answer() == {"error": "ExchangeTimeoutError", "peers": [2]}


def test_rank_that_was_only_paused_goes_on() -> None:
    with processes(1) as (listener, peers), join(listener, peers) as mesh:
        peers[0].tell("turns", count=3, num_bytes=30_000_000, deadline=SECONDS, strike=[1, signal.SIGSTOP])
        idle: list[int] = []

        def wake_it_after_a_while() -> None:
            idle.append(1)
            if len(idle) >= 10:
                peers[0].signal(signal.SIGCONT)

        turns(mesh, 3, 30_000_000, on_idle=wake_it_after_a_while)
        assert peers[0].answer() == {"ok": "turns"}


def test_healthy_peer_that_reads_slowly_is_not_cut_off() -> None:
    """Much of it lies in our own send buffer, which frees room for more only long after the deadline; the
    bytes that the peer's kernel takes count as progress. (TCP_USER_TIMEOUT would have cut it off.)"""
    payload = bytes(6 << 20)
    with Listener() as listener, socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        addresses = [(listener.host, listener.port), ("127.0.0.1", 1)]
        seen = []
        thread = threading.Thread(target=lambda: seen.append(_read_slowly(reader, addresses[0], len(payload))))
        thread.start()
        with Mesh.connect(listener, 0, addresses, 1, TOKEN, SECONDS) as mesh:
            mesh.exchange({1: [payload]}, {}, deadline_seconds=0.8)
        thread.join()
    assert seen == [len(payload) + 24]


def _read_slowly(reader: socket.socket, address: tuple[str, int], num_bytes: int) -> int:
    """A peer made by hand: 64 KiB each 60 ms for the half of it, then the rest."""
    reader.connect(address)
    handshake = DialerHandshake(TOKEN, Seat(generation=1, world_size=2, dialer=1, acceptor=0))
    reader.sendall(handshake.hello)
    while not handshake.is_done:
        reader.sendall(handshake.feed(reader.recv(handshake.bytes_due)))
    total = 0
    pause = threading.Event()
    while part := reader.recv(64 << 10, socket.MSG_WAITALL):
        total += len(part)
        if total < num_bytes // 2:
            pause.wait(0.06)
    return total


def test_many_processes_choose_their_ports_at_once_without_collisions() -> None:
    """Four runs started together on one host (pytorch/pytorch#91940)."""
    with processes(8) as (_listener, peers):
        assert len({peer.address for peer in peers}) == 8
        pairs = [(peers[index], peers[index + 1]) for index in range(0, 8, 2)]
        for pair in pairs:
            for rank, peer in enumerate(pair):
                addresses = [each.address for each in pair]
                peer.tell("join", rank=rank, addresses=addresses, generation=1, deadline=SECONDS)
                peer.tell("turns", count=2, num_bytes=1000, deadline=SECONDS)
        assert [peer.answer() for peer in peers] == [{"ok": "join"}] * 8
        assert [peer.answer() for peer in peers] == [{"ok": "turns"}] * 8
