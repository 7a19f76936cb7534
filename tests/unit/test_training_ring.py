"""The record ring between a rank and its agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given

from openclaw_tasks.training.control import ControlChannel
from openclaw_tasks.training.ring import RecordRing

RECORD_BYTES = 5000


@pytest.fixture
def rank() -> Iterator[RecordRing]:
    ring = RecordRing.create(slots=3, slot_bytes=RECORD_BYTES)
    yield ring
    ring.close()


@pytest.fixture
def agent(rank: RecordRing) -> Iterator[RecordRing]:
    ring = RecordRing.attach(os.dup(rank.fd))
    yield ring
    ring.close()


def record_of(step: int) -> bytes:
    return bytes([step % 251]) * (RECORD_BYTES - step)


def write(ring: RecordRing, step: int) -> int:
    slot = ring.claim()
    assert slot is not None
    data = record_of(step)
    ring.buffer(slot)[: len(data)] = data
    ring.publish(slot, step, len(data))
    return slot


def held(ring: RecordRing) -> dict[int, bytes]:
    return {step: bytes(ring.record(slot)) for step, slot in ring.held()}


def test_the_agent_sees_a_record_only_when_it_is_final(rank: RecordRing, agent: RecordRing) -> None:
    write(rank, 1)
    write(rank, 2)
    assert held(agent) == {}
    assert agent.is_empty()

    rank.mark_final(1)

    assert agent.final_step == 1
    assert held(agent) == {1: record_of(1)}
    assert not agent.is_empty()


def test_the_lowest_free_slot_is_used_again_and_again(rank: RecordRing, agent: RecordRing) -> None:
    for step in range(1, 20):
        assert write(rank, step) == 0
        rank.mark_final(step)
        agent.free_through(step)


def test_a_claimed_slot_stays_the_same_until_it_is_published(rank: RecordRing) -> None:
    """A rank that leaves a step between the two writes the record again later."""
    assert rank.claim() == rank.claim() == 0


def test_a_full_ring_has_no_slot_until_the_agent_gives_one_back(rank: RecordRing, agent: RecordRing) -> None:
    for step in (1, 2, 3):
        write(rank, step)
    assert rank.claim() is None

    agent.free_through(2)

    assert rank.claim() == 0
    rank.mark_final(3)
    assert held(agent) == {3: record_of(3)}


def test_a_record_may_fill_its_slot_to_the_last_byte(rank: RecordRing, agent: RecordRing) -> None:
    slot = rank.claim()
    assert slot is not None
    buffer = rank.buffer(slot)
    assert len(buffer) >= RECORD_BYTES
    buffer[:] = b"\xff" * len(buffer)
    rank.publish(slot, 1, len(buffer))
    write(rank, 2)
    rank.mark_final(2)

    assert held(agent) == {1: b"\xff" * len(buffer), 2: record_of(2)}


def test_a_buffer_that_is_no_ring_is_refused() -> None:
    fd = os.memfd_create("no-ring")
    os.ftruncate(fd, 1 << 16)

    with pytest.raises(AssertionError, match="not a record ring"):
        RecordRing.attach(fd)
    os.close(fd)


def test_a_ring_may_be_closed_while_a_put_still_reads_its_records(rank: RecordRing) -> None:
    """A thread that has just reported its put may hold the views for a moment longer."""
    reader = RecordRing.attach(os.dup(rank.fd))
    write(rank, 1)
    rank.mark_final(1)
    view = reader.record(0)

    reader.close()

    assert bytes(view) == record_of(1)


WRITER = """
import signal, sys
from openclaw_tasks.training.control import ControlChannel
from openclaw_tasks.training.ring import RecordRing

line = ControlChannel.adopt(int(sys.argv[1]))
ring = RecordRing.create(slots=4, slot_bytes=5000)
line.send({"type": "ready"}, fds=[ring.fd])
for step in (1, 2, 3, 4):
    slot = ring.claim()
    data = bytes([step]) * (5000 - step)
    ring.buffer(slot)[: len(data)] = data
    ring.publish(slot, step, len(data))
    ring.mark_final(step - 1)
assert ring.claim() is None
line.send({"type": "full"})
line.receive(None)
assert ring.claim() == 0, "the agent has given the slot of step 1 back"
line.send({"type": "free"})
signal.pause()
"""


def test_a_killed_writer_leaves_its_final_records_to_the_other_process() -> None:
    mine, theirs = ControlChannel.pair()
    with subprocess.Popen([sys.executable, "-c", WRITER, str(theirs.fileno())], pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        received = mine.receive(60.0)
        assert received is not None
        ring = RecordRing.attach(received[1][0])
        assert mine.receive(60.0) == ({"type": "full"}, [])
        assert held(ring) == {step: record_of(step) for step in (1, 2, 3)}
        ring.free_through(1)
        mine.send({"type": "go on"})
        assert mine.receive(60.0) == ({"type": "free"}, [])
        process.send_signal(signal.SIGKILL)
    mine.close()

    assert held(ring) == {2: record_of(2), 3: record_of(3)}
    assert ring.final_step == 3
    ring.close()


@given(
    st.integers(1, 5), st.lists(st.sampled_from(["write", "final", "free", "free one less"]), min_size=1, max_size=60)
)
def test_no_record_is_lost_or_changed_before_it_is_given_back(slots: int, moves: list[str]) -> None:
    """Whatever the order of writing, finality and durability; and the ring never holds more than it can."""
    ring = RecordRing.create(slots, 64)
    inside: list[int] = []
    step = final = 0
    for move in moves:
        if move == "write":
            slot = ring.claim()
            assert (slot is None) == (len(inside) == slots)
            if slot is not None:
                step += 1
                inside.append(step)
                ring.buffer(slot)[:8] = step.to_bytes(8, "little")
                ring.publish(slot, step, 8)
        elif move == "final":
            final = max(final, step - 1)
            ring.mark_final(final)
        else:
            durable = final if move == "free" else final - 1
            ring.free_through(durable)
            inside = [held_step for held_step in inside if held_step > durable]
        found = {held_step: int.from_bytes(ring.record(slot), "little") for held_step, slot in ring.held()}
        assert found == {held_step: held_step for held_step in inside if held_step <= final}
    ring.close()
