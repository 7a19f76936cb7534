"""The line between an agent and a process of its launcher."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from openclaw_tasks.training.control import ControlChannel, ControlClosed

Lines = tuple[ControlChannel, ControlChannel]


@pytest.fixture
def lines() -> Iterator[Lines]:
    mine, theirs = ControlChannel.pair()
    yield mine, theirs
    mine.close()
    theirs.close()


def test_messages_come_whole_and_in_order(lines: Lines) -> None:
    mine, theirs = lines
    messages = [{"type": "step", "step": step, "text": "x" * step} for step in range(50)]
    for message in messages:
        mine.send(message)

    assert [theirs.receive() for _ in messages] == [(message, []) for message in messages]


def test_nothing_to_read_is_none_after_the_timeout(lines: Lines) -> None:
    mine, _ = lines

    assert mine.receive() is None
    assert mine.receive(0.01) is None
    assert not mine.is_readable()


def test_descriptors_travel_with_their_message_and_are_not_inherited_further(lines: Lines) -> None:
    mine, theirs = lines
    fd = os.memfd_create("travels")
    os.write(fd, b"hello")
    mine.send({"type": "plain"})
    mine.send({"type": "with"}, fds=[fd, fd])
    os.close(fd)

    assert theirs.receive() == ({"type": "plain"}, [])
    received = theirs.receive()
    assert received is not None
    message, fds = received
    assert message == {"type": "with"}
    for copy in fds:
        assert os.pread(copy, 5, 0) == b"hello"
        assert not os.get_inheritable(copy)
        os.close(copy)
    assert len(fds) == 2


def test_what_a_peer_said_last_is_read_before_its_end(lines: Lines) -> None:
    mine, theirs = lines
    mine.send({"type": "left"})
    mine.close()

    assert theirs.receive(None) == ({"type": "left"}, [])
    assert theirs.is_readable()
    with pytest.raises(ControlClosed):
        theirs.receive()


def test_sending_to_a_peer_that_has_gone_says_so(lines: Lines) -> None:
    mine, theirs = lines
    theirs.close()

    with pytest.raises(ControlClosed):
        mine.send({"type": "stop"})


def test_a_large_message_fits_in_one_packet(lines: Lines) -> None:
    mine, theirs = lines
    message = {"type": "error", "traceback": "é" * 25_000}
    mine.send(message)

    assert theirs.receive() == (message, [])


def test_a_message_over_the_limit_is_our_own_mistake(lines: Lines) -> None:
    mine, _ = lines

    with pytest.raises(AssertionError, match=r"control message of \d+ bytes: error"):
        mine.send({"type": "error", "traceback": "x" * 200_000})


def test_a_descriptor_beyond_1024_works() -> None:
    """`select` cannot watch it, and the agent of a process with many open files gets such ones."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line = ControlChannel(one)
    high = fcntl.fcntl(other.fileno(), fcntl.F_DUPFD_CLOEXEC, 1100)
    other.close()
    far = ControlChannel.adopt(high)
    line.send({"type": "beat"})

    assert far.is_readable()
    assert far.receive(1.0) == ({"type": "beat"}, [])
    line.close()
    far.close()


def test_a_killed_process_shows_as_the_lines_end(lines: Lines) -> None:
    mine, theirs = lines
    program = (
        "import sys, signal; from openclaw_tasks.training.control import ControlChannel;"
        "ControlChannel.adopt(int(sys.argv[1])).send({'type': 'here'}); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(theirs.fileno())], pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        assert mine.receive(60.0) == ({"type": "here"}, [])
        process.send_signal(signal.SIGKILL)

        with pytest.raises(ControlClosed):
            mine.receive(60.0)
