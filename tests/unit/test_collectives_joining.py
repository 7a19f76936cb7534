"""Joining a generation: members find each other whatever else dials in."""

from __future__ import annotations

import contextlib
import gc
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mesh_threads import SECONDS, TOKEN, Gang, all_well, in_threads

from openclaw_tasks.collectives.handshake import DialerHandshake, Seat
from openclaw_tasks.collectives.mesh import Listener, Mesh
from openclaw_tasks.collectives.transport import Dynamic, ExchangeTimeoutError, LinkBrokenError


class LeaveJoinError(Exception):
    """What a rank's hook raises in these tests."""


def talk(mesh: Mesh) -> list[bytes]:
    """A first exchange proves that the links lead where they should."""
    peers = [peer for peer in range(mesh.world_size) if peer != mesh.rank]
    heard = mesh.exchange(
        {peer: [b"%d" % mesh.rank] for peer in peers},
        {peer: [Dynamic(1)] for peer in peers},
        deadline_seconds=SECONDS,
    )
    return [bytes(heard[peer][0] or b"") for peer in peers]


@contextlib.contextmanager
def listeners(count: int) -> Iterator[list[Listener]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Listener()) for _ in range(count)]


def addresses(of: list[Listener]) -> list[tuple[str, int]]:
    return [(listener.host, listener.port) for listener in of]


def join_and_talk(of: list[Listener], rank: int, generation: int, token: bytes = TOKEN) -> list[bytes]:
    with Mesh.connect(of[rank], rank, addresses(of), generation, token, SECONDS) as mesh:
        return talk(mesh)


def test_port_is_chosen_by_the_kernel_and_kept() -> None:
    """No port is found free, released and asked for again (pytorch/pytorch#91940)."""
    with listeners(16) as many:
        ports = {listener.port for listener in many}
        assert len(ports) == 16
        for port in ports:
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))


def test_one_listener_serves_generation_after_generation() -> None:
    """Members and their numbers change, the listeners stay."""
    with listeners(4) as many:
        for generation, size in ((1, 4), (2, 2), (7, 3), (8, 1), (9, 4)):
            these = many[4 - size :]
            heard = all_well(
                in_threads([lambda r=r: join_and_talk(these, r, generation) for r in range(size)])  # noqa: B023
            )
            assert heard == [[b"%d" % p for p in range(size) if p != r] for r in range(size)]


def test_members_may_come_at_different_times_and_in_any_order() -> None:
    def late(rank: int) -> list[bytes]:
        time.sleep(0.05 * ((rank * 2) % 5))
        return join_and_talk(many, rank, 3)

    with listeners(5) as many:
        all_well(in_threads([lambda r=r: late(r) for r in range(5)]))


def test_wrong_token_is_refused_and_the_others_are_not_harmed() -> None:
    with listeners(3) as many:
        intruder_done = threading.Event()

        def intrude() -> None:
            """Dials as rank 2 of this very generation, with a guessed token; the true rank 2 comes later."""
            own = Listener()
            with own, pytest.raises(ExchangeTimeoutError) as caught:
                Mesh.connect(own, 2, addresses(many), 1, b"guess", 0.5)
            intruder_done.set()
            assert caught.value.peers == (0, 1)

        def true_member(rank: int) -> list[bytes]:
            if rank == 2:
                intruder_done.wait()
            return join_and_talk(many, rank, 1)

        all_well(in_threads([intrude, *(lambda r=r: true_member(r) for r in range(3))]))


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _stray_connections(port: int) -> list[socket.socket]:
    """What port scanners, browsers and half-dead dialers do; returns those that stay open."""
    dial = lambda: socket.create_connection(("127.0.0.1", port))  # noqa: E731
    silent, talker, partial, unproven = dial(), dial(), dial(), dial()
    talker.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" * 100)
    hello = DialerHandshake(TOKEN, Seat(1, 3, 1, 0)).hello
    partial.sendall(hello[:20])
    unproven.sendall(hello)
    dial().close()
    _reset(dial())
    gone = dial()
    gone.sendall(hello)
    _reset(gone)
    return [silent, talker, partial, unproven]


def test_port_scanner_does_not_break_the_mesh() -> None:
    """Some come before the mesh is formed, some while it is, each kind several times."""
    with listeners(3) as many:
        strays = [stray for listener in many for stray in _stray_connections(listener.port)]

        def scan() -> list[bytes]:
            for _ in range(5):
                strays.extend(stray for listener in many for stray in _stray_connections(listener.port))
            return []

        def member(rank: int) -> list[bytes]:
            if rank == 2:
                scan()
            return join_and_talk(many, rank, 1)

        heard = all_well(in_threads([scan, *(lambda r=r: member(r) for r in range(3))]))
        for stray in strays:
            stray.close()
    assert heard[1:] == [[b"1", b"2"], [b"0", b"2"], [b"0", b"1"]]


def test_flood_of_silent_strangers_leaves_room_for_members() -> None:
    with listeners(2) as many, contextlib.ExitStack() as strays:
        for _ in range(200):
            strays.enter_context(socket.create_connection(("127.0.0.1", many[0].port)))
        all_well(in_threads([lambda r=r: join_and_talk(many, r, 1) for r in range(2)]))


def test_dialer_left_from_an_older_generation_is_closed() -> None:
    hello = DialerHandshake(TOKEN, Seat(generation=4, world_size=2, dialer=1, acceptor=0)).hello
    with listeners(2) as many, socket.create_connection(("127.0.0.1", many[0].port)) as stale:
        stale.sendall(hello)
        all_well(in_threads([lambda r=r: join_and_talk(many, r, 5) for r in range(2)]))
        assert stale.recv(1) == b""


def test_member_ahead_of_its_peers_waits_for_them_to_come_to_its_generation() -> None:
    """Rank 0 is told of generation 2 late: until then it closes what rank 1 dials, and 1 dials again."""
    is_replaced = threading.Event()

    def behind() -> list[bytes]:
        def hook() -> None:
            if is_replaced.is_set():
                raise LeaveJoinError

        with pytest.raises(LeaveJoinError):
            Mesh.connect(many[0], 0, addresses(many), 1, TOKEN, SECONDS, on_idle=hook)
        return join_and_talk(many, 0, 2)

    def ahead() -> list[bytes]:
        threading.Timer(0.3, is_replaced.set).start()
        return join_and_talk(many, 1, 2)

    with listeners(2) as many:
        assert all_well(in_threads([behind, ahead])) == [[b"1"], [b"0"]]


def test_those_who_did_not_come_are_named_at_the_deadline() -> None:
    """And who came sees at once that the one whose deadline passed has left."""

    def join(rank: int, seconds: float) -> Mesh:
        return Mesh.connect(many[rank], rank, addresses(many), 1, TOKEN, seconds)

    with listeners(4) as many:
        gave_up, was_left = in_threads([lambda: join(1, 0.4), lambda: join(2, SECONDS)])
    assert isinstance(gave_up, ExchangeTimeoutError)
    assert gave_up.peers == (0, 3)
    assert "joining generation 1" in str(gave_up)
    assert isinstance(was_left, LinkBrokenError)
    assert was_left.peer == 1


def test_peer_that_joined_and_went_is_told_before_the_deadline() -> None:
    def come_and_go() -> None:
        handshake = DialerHandshake(TOKEN, Seat(generation=1, world_size=3, dialer=1, acceptor=0))
        with socket.create_connection((many[0].host, many[0].port)) as connection:
            connection.sendall(handshake.hello)
            while not handshake.is_done:
                connection.sendall(handshake.feed(connection.recv(handshake.bytes_due)))

    with listeners(3) as many:
        join = lambda: Mesh.connect(many[0], 0, addresses(many), 1, TOKEN, SECONDS)  # noqa: E731
        error, nothing = in_threads([join, come_and_go])
    assert isinstance(error, LinkBrokenError)
    assert error.peer == 1
    assert nothing is None


def test_reason_why_nobody_answers_is_told() -> None:
    with Listener() as own:
        gone = Listener()
        gone.close()
        with pytest.raises(ExchangeTimeoutError, match=r"rank 0: .*refused"):
            Mesh.connect(own, 1, [(gone.host, gone.port), (own.host, own.port)], 1, TOKEN, 0.2)


def test_interface_may_have_an_ipv6_address() -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("this host has no IPv6")
    with Listener("::1") as zero, Listener("::1") as one:
        all_well(in_threads([lambda r=r: join_and_talk([zero, one], r, 1) for r in range(2)]))


def test_abort_and_timeout_leave_nothing_open() -> None:
    def abort() -> None:
        raise LeaveJoinError

    with listeners(3) as many:
        with pytest.raises(LeaveJoinError):
            Mesh.connect(many[1], 1, addresses(many), 1, TOKEN, SECONDS, on_idle=abort)
        with pytest.raises(ExchangeTimeoutError):
            Mesh.connect(many[1], 1, addresses(many), 1, TOKEN, 0.1)
    gc.collect()  # a socket left open would warn here, and warnings are errors


def test_eight_ranks_mesh_in_one_process() -> None:
    with Gang(8) as gang:
        assert all(len(mesh.links) == 7 for mesh in gang.meshes)
