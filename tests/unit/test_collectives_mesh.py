"""Exchanges over real sockets, each rank a thread."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest
from mesh_threads import SECONDS, Gang, all_well

from openclaw_tasks.collectives.mesh import Listener, Mesh
from openclaw_tasks.collectives.transport import Dynamic, ExchangeTimeoutError, LinkBrokenError
from openclaw_tasks.collectives.waiting import Watch


class LeaveStepError(Exception):
    """What a rank's hook raises in these tests."""


def others(mesh: Mesh) -> list[int]:
    return [peer for peer in range(mesh.world_size) if peer != mesh.rank]


@pytest.mark.parametrize("size", [2, 3, 8])
def test_every_rank_hears_every_other(size: int) -> None:
    def talk(mesh: Mesh) -> dict[int, list[bytearray | None]]:
        sends = {peer: [f"{mesh.rank} to {peer}".encode()] for peer in others(mesh)}
        receives = {peer: [Dynamic(100)] for peer in others(mesh)}
        return mesh.exchange(sends, receives, deadline_seconds=SECONDS)

    with Gang(size) as gang:
        for rank, heard in enumerate(all_well(gang.run(talk))):
            assert heard == {peer: [b"%d to %d" % (peer, rank)] for peer in range(size) if peer != rank}


def test_given_buffers_are_filled_in_place_and_in_order() -> None:
    def talk(mesh: Mesh) -> list[np.ndarray]:
        into = [np.zeros(1000, np.float32), np.zeros((2, 3), np.int64), np.zeros(0, np.uint8)]
        sends = [into_like * 0 + mesh.rank + 5 for into_like in into]
        heard = mesh.exchange({1 - mesh.rank: sends}, {1 - mesh.rank: into}, deadline_seconds=SECONDS)
        assert heard == {1 - mesh.rank: [None, None, None]}
        return into

    with Gang(2) as gang:
        zero, one = all_well(gang.run(talk))
    assert {part.flat[0] for part in zero[:2]} == {6}
    assert {part.flat[0] for part in one[:2]} == {5}
    assert all((part == part.flat[0]).all() for part in zero[:2])


def test_ranks_need_not_have_anything_for_each_other() -> None:
    """A source hands something to one member while the third is already at the next exchange."""

    def talk(mesh: Mesh) -> bytes:
        if mesh.rank == 0:
            mesh.exchange({1: [b"state"]}, {}, deadline_seconds=SECONDS)
        elif mesh.rank == 1:
            assert mesh.exchange({}, {0: [Dynamic(9)]}, deadline_seconds=SECONDS) == {0: [bytearray(b"state")]}
        peers = others(mesh)
        heard = mesh.exchange(
            {peer: [b"%d" % mesh.rank] for peer in peers},
            {peer: [Dynamic(1)] for peer in peers},
            deadline_seconds=SECONDS,
        )
        return b"".join(bytes(heard[peer][0] or b"") for peer in peers)

    with Gang(3) as gang:
        assert all_well(gang.run(talk)) == [b"12", b"02", b"01"]


def test_large_messages_in_both_directions_at_once_do_not_deadlock() -> None:
    """64 MB each way fit into no socket buffer: whoever only sends first would wait for ever."""
    payload = np.arange(16 << 20, dtype=np.int32)

    def talk(mesh: Mesh) -> np.ndarray:
        into = np.zeros_like(payload)
        mesh.exchange({1 - mesh.rank: [payload]}, {1 - mesh.rank: [into]}, deadline_seconds=SECONDS)
        return into

    with Gang(2) as gang:
        for into in all_well(gang.run(talk)):
            assert np.array_equal(into, payload)


def test_what_arrives_early_for_the_next_exchange_waits_in_the_socket() -> None:
    """Rank 1 needs nothing from rank 0 in its first exchanges and is several of them ahead."""
    first_done = threading.Event()

    def talk(mesh: Mesh) -> list[bytes]:
        if mesh.rank == 1:
            for turn in range(5):
                mesh.exchange({0: [b"turn %d" % turn]}, {}, deadline_seconds=SECONDS)
            first_done.set()
            mesh.exchange({}, {0: [bytearray(2)]}, deadline_seconds=SECONDS)
            return []
        first_done.wait()
        heard = [mesh.exchange({}, {1: [Dynamic(6)]}, deadline_seconds=SECONDS)[1][0] for _ in range(5)]
        mesh.exchange({1: [b"ok"]}, {}, deadline_seconds=SECONDS)
        return [bytes(part or b"") for part in heard]

    with Gang(2) as gang:
        assert all_well(gang.run(talk))[0] == [b"turn %d" % turn for turn in range(5)]


@pytest.mark.parametrize("unread", [b"", b"never read"], ids=["closed by FIN", "closed by RST"])
def test_peer_that_closes_after_sending_all_that_is_due_breaks_nothing(unread: bytes) -> None:
    """A close with bytes unread sends RST; what the peer sent before is still there to be read."""
    sent, closed = threading.Event(), threading.Event()
    payload = bytes(range(256)) * 300

    def talk(mesh: Mesh) -> object:
        if mesh.rank == 0:
            if unread:
                mesh.exchange({1: [unread]}, {}, deadline_seconds=SECONDS)
            sent.set()
            closed.wait()
            return mesh.exchange({}, {1: [Dynamic(len(payload))]}, deadline_seconds=SECONDS)[1][0]
        sent.wait()
        mesh.exchange({0: [payload]}, {}, deadline_seconds=SECONDS)
        time.sleep(0.05)  # loopback delivers at once; a reset overtakes what has not left yet
        mesh.close()
        closed.set()
        return None

    with Gang(2) as gang:
        assert all_well(gang.run(talk))[0] == payload


def test_closed_peer_is_seen_at_once_by_a_rank_that_waits_for_it() -> None:
    """A failure that is known must not wait out a collective timeout (meta-pytorch/torchft#164)."""

    def talk(mesh: Mesh) -> None:
        if mesh.rank == 1:
            mesh.close()
        else:
            mesh.exchange({}, {1: [Dynamic(1)]}, deadline_seconds=SECONDS)

    with Gang(2) as gang:
        error = gang.run(talk)[0]
    assert isinstance(error, LinkBrokenError)
    assert error.peer == 1


def test_closed_peer_is_seen_at_once_by_a_rank_that_only_sends_to_it() -> None:
    big = bytes(64 << 20)

    def talk(mesh: Mesh) -> None:
        if mesh.rank == 1:
            mesh.exchange({}, {0: [bytearray(1)]}, deadline_seconds=SECONDS)
            mesh.close()
        else:
            mesh.exchange({1: [b"1"]}, {}, deadline_seconds=SECONDS)
            mesh.exchange({1: [big]}, {}, deadline_seconds=SECONDS)

    with Gang(2) as gang:
        error = gang.run(talk)[0]
    assert isinstance(error, LinkBrokenError)
    assert error.peer == 1


def test_one_ranks_abort_reaches_the_whole_group() -> None:
    """Rank 2 leaves; 0 and 1 wait for each other only, and still hear of it through whoever noticed."""

    def talk(mesh: Mesh) -> None:
        with mesh:
            if mesh.rank < 2:
                waits_for = {0: 2, 1: 0}[mesh.rank]
                mesh.exchange({}, {waits_for: [Dynamic(1)]}, deadline_seconds=SECONDS)

    with Gang(3) as gang:
        results = gang.run(talk)
    assert [getattr(result, "peer", None) for result in results] == [2, 0, None]


def test_silent_peer_is_named_at_the_deadline_and_a_talking_one_is_not() -> None:
    """Rank 1 sends a byte now and then, rank 2 nothing: the deadline counts silence, not the exchange."""
    is_over = threading.Event()

    def talk(mesh: Mesh) -> None:
        if mesh.rank == 0:
            try:
                receives = {1: [bytearray(1) for _ in range(200)], 2: [bytearray(1)]}
                mesh.exchange({}, receives, deadline_seconds=1.0)
            finally:
                is_over.set()
        elif mesh.rank == 1:
            link = mesh._links[0]
            link.begin([b"x"] * 200, [], Watch(None))
            while not is_over.wait(0.02) and link.is_sending:
                link.send(1, Watch(None))
        else:
            is_over.wait()

    with Gang(3) as gang:
        error = gang.run(talk)[0]
    assert isinstance(error, ExchangeTimeoutError)
    assert error.peers == (2,)


def test_own_pause_is_not_blamed_on_the_peers() -> None:
    """A hook that takes longer than the deadline, and a peer that answers after it (rubrikinc/kronos#10)."""
    paused = threading.Event()

    def pause() -> None:
        if not paused.is_set():
            time.sleep(1.3)
            paused.set()

    def talk(mesh: Mesh) -> None:
        if mesh.rank == 0:
            mesh.exchange({}, {1: [bytearray(1)]}, deadline_seconds=1.0, on_idle=pause)
        else:
            paused.wait()
            mesh.exchange({0: [b"x"]}, {}, deadline_seconds=SECONDS)

    with Gang(2) as gang:
        all_well(gang.run(talk))


def test_hook_is_called_while_nothing_happens_and_may_abort() -> None:
    calls = []

    def hook() -> None:
        calls.append(time.monotonic())
        if len(calls) == 3:
            raise LeaveStepError

    def talk(mesh: Mesh) -> None:
        with mesh:
            mesh.exchange(
                {},
                {1 - mesh.rank: [bytearray(1)]},
                deadline_seconds=SECONDS,
                on_idle=hook if mesh.rank == 0 else None,
            )

    with Gang(2) as gang:
        zero, one = gang.run(talk)
    assert isinstance(zero, LeaveStepError)
    assert len(calls) == 3
    assert isinstance(one, LinkBrokenError)


def test_hook_is_called_during_a_transfer_that_never_pauses() -> None:
    calls: list[int] = []
    part = np.zeros(16 << 20, np.uint8)

    def talk(mesh: Mesh) -> None:
        if mesh.rank == 0:
            receives = {1: [part] * 24}
            mesh.exchange({}, receives, deadline_seconds=SECONDS, on_idle=lambda: calls.append(1))
        else:
            mesh.exchange({0: [part] * 24}, {}, deadline_seconds=SECONDS)

    with Gang(2) as gang:
        all_well(gang.run(talk))
    assert calls


def test_hook_is_due_after_50_ms_however_much_there_is_to_do() -> None:
    calls: list[int] = []
    watch = Watch(lambda: calls.append(1))
    watch.call_hook(nothing_was_ready=True)
    time.sleep(0.06)
    watch.advance()
    watch.call_hook(nothing_was_ready=False)
    watch.call_hook(nothing_was_ready=False)
    assert calls == [1, 1]


def test_mesh_is_useless_after_an_abort() -> None:
    def abort() -> None:
        raise LeaveStepError

    with Gang(2) as gang:
        with pytest.raises(LeaveStepError):
            gang.meshes[0].exchange({}, {1: [bytearray(1)]}, deadline_seconds=SECONDS, on_idle=abort)
        with pytest.raises(AssertionError, match="connect another"):
            gang.meshes[0].exchange({}, {}, deadline_seconds=SECONDS)


@pytest.mark.parametrize(("size", "length"), [(2, 1), (2, 1001), (2, 20 << 20), (3, 999), (4, 3 << 20)])
def test_half_is_told_exactly_when_half_of_the_payload_has_left(size: int, length: int) -> None:
    """A fault struck there finds some slices sent and some not, however small the model is."""
    payload = bytes(length)

    def talk(mesh: Mesh) -> list[int]:
        left = []
        peers = others(mesh)
        mesh.exchange(
            {peer: [payload, b"x"] for peer in peers},
            {peer: [bytearray(length), bytearray(1)] for peer in peers},
            deadline_seconds=SECONDS,
            at_half=lambda: left.append(_payload_left(mesh)),
        )
        return left

    with Gang(size) as gang:
        total = (length + 1) * (size - 1)
        assert all_well(gang.run(talk)) == [[total - total // 2]] * size


def _payload_left(mesh: Mesh) -> int:
    return sum(len(view) for link in mesh._links.values() for view, is_payload in link._out if is_payload)


def test_half_of_nothing_is_told_at_the_start() -> None:
    order = []
    with Gang(2) as gang:
        gang.meshes[1].exchange({0: [b"x"]}, {}, deadline_seconds=SECONDS)
        gang.meshes[0].exchange({}, {1: [bytearray(1)]}, deadline_seconds=SECONDS, at_half=lambda: order.append("half"))
    assert order == ["half"]


def test_half_hook_that_raises_leaves_the_rest_unsent() -> None:
    def strike() -> None:
        raise LeaveStepError

    def talk(mesh: Mesh) -> None:
        hook = strike if mesh.rank == 0 else None
        sends, receives = {1 - mesh.rank: [bytes(100)]}, {1 - mesh.rank: [bytearray(100)]}
        with mesh:
            mesh.exchange(sends, receives, deadline_seconds=SECONDS, at_half=hook)

    with Gang(2) as gang:
        zero, one = gang.run(talk)
    assert isinstance(zero, LeaveStepError)
    assert isinstance(one, LinkBrokenError)


@pytest.mark.parametrize(
    ("sends", "receives", "says"),
    [
        ([b"12345"], [Dynamic(4)], "5 bytes where at most 4"),
        ([b"12345"], [bytearray(4)], "5 bytes where 4 were due"),
        ([b""], [bytearray(4)], "0 bytes where 4 were due"),
        ([b"1"], [bytearray(1), bytearray(1)], "message 0 of exchange 1 where message 1 of exchange 0"),
    ],
    ids=["more than the bound", "too long", "empty", "a message fewer"],
)
def test_ranks_that_disagree_about_the_messages_find_out(sends: list, receives: list, says: str) -> None:
    def talk(mesh: Mesh) -> None:
        if mesh.rank == 0:
            mesh.exchange({}, {1: receives}, deadline_seconds=SECONDS)
        else:
            mesh.exchange({0: sends}, {}, deadline_seconds=SECONDS)
            mesh.exchange({0: sends}, {}, deadline_seconds=SECONDS)

    with Gang(2) as gang:
        error = gang.run(talk)[0]
    assert isinstance(error, LinkBrokenError)
    assert says in error.reason


def test_message_more_than_expected_is_found_in_the_next_exchange() -> None:
    def talk(mesh: Mesh) -> None:
        if mesh.rank == 1:
            mesh.exchange({0: [b"1", b"2"]}, {}, deadline_seconds=SECONDS)
        else:
            mesh.exchange({}, {1: [Dynamic(9)]}, deadline_seconds=SECONDS)
            mesh.exchange({}, {1: [Dynamic(9)]}, deadline_seconds=SECONDS)

    with Gang(2) as gang:
        error = gang.run(talk)[0]
    assert isinstance(error, LinkBrokenError)
    assert "message 1 of exchange 0" in error.reason


def test_lone_rank_needs_no_socket() -> None:
    halves = []
    with Listener() as listener:
        mesh = Mesh.connect(listener, 0, [(listener.host, listener.port)], 1, b"token", SECONDS)
        assert mesh.exchange({}, {}, deadline_seconds=1.0, at_half=lambda: halves.append(1)) == {}
        assert (mesh.rank, mesh.world_size, mesh.links) == (0, 1, {})
        mesh.close()
    assert halves == [1]


def test_closing_twice_is_fine_and_nothing_is_left_open() -> None:
    gang = Gang(3)
    gang.close()
    gang.close()
    del gang
    gc.collect()  # a socket left open would warn here, and warnings are errors


def test_links_tell_bytes_and_bandwidth() -> None:
    payload = bytes(32 << 20)

    def talk(mesh: Mesh) -> None:
        into = bytearray(len(payload))
        for _ in range(2):
            mesh.exchange({1 - mesh.rank: [payload]}, {1 - mesh.rank: [into]}, deadline_seconds=SECONDS)

    with Gang(2) as gang:
        all_well(gang.run(talk))
        stats = gang.meshes[0].links[1]
    assert stats.bytes_sent == stats.bytes_received == 2 * (len(payload) + 24)
    assert stats.seconds_sending > 0
    assert stats.seconds_receiving > 0
    assert stats.receive_bytes_per_second is not None
    assert stats.receive_bytes_per_second > 0
