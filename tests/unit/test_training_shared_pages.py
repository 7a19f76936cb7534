"""What a rank shows its agent through shared memory: that it moves, how long steps take, and copies of its state."""

from __future__ import annotations

import array
import os
from collections.abc import Iterator

import numpy as np
import pytest

from openclaw_tasks.training.base_copy import BaseCopy, pack_base
from openclaw_tasks.training.clock import UsefulTime
from openclaw_tasks.training.progress import Phase, ProgressPage


@pytest.fixture
def rank() -> Iterator[ProgressPage]:
    page = ProgressPage.create()
    yield page
    page.close()


@pytest.fixture
def agent(rank: ProgressPage) -> Iterator[ProgressPage]:
    page = ProgressPage(os.dup(rank.fd))
    yield page
    page.close()


def test_a_fresh_page_says_that_the_rank_is_starting(agent: ProgressPage) -> None:
    assert (agent.beats, agent.step, agent.phase) == (0, 0, Phase.STARTING)
    assert agent.struck_at is None
    assert agent.step_seconds is None


def test_the_agent_sees_what_the_rank_does(rank: ProgressPage, agent: ProgressPage) -> None:
    rank.enter(Phase.COMPUTING, 12)
    rank.beat()

    assert (agent.beats, agent.step, agent.phase) == (2, 12, Phase.COMPUTING)


def test_step_times_are_averaged_with_the_newest_weighing_a_third(rank: ProgressPage, agent: ProgressPage) -> None:
    rank.took(1.0)
    assert agent.step_seconds == 1.0
    rank.took(2.0)
    assert agent.step_seconds == pytest.approx(1.3)


def test_a_strike_leaves_its_time(rank: ProgressPage, agent: ProgressPage) -> None:
    rank.strike()

    assert agent.struck_at is not None
    assert agent.struck_at > 0


def test_useful_time_counts_only_what_lies_in_the_stretch() -> None:
    useful = UsefulTime()
    useful._spans.extend([(0.0, 2.0), (3.0, 4.0), (6.0, 9.0)])

    assert useful.between(1.0, 7.0) == 1.0 + 1.0 + 1.0
    assert useful.between(4.0, 6.0) == 0.0
    assert useful.between(-5.0, 50.0) == 6.0


def test_useful_time_is_measured_even_when_the_work_raises() -> None:
    useful = UsefulTime()
    with pytest.raises(KeyError), useful.measure():
        raise KeyError
    with useful.measure():
        pass

    assert len(useful._spans) == 2


def test_a_copy_of_the_state_comes_back_as_it_was() -> None:
    objects = {"params": b"\x01\x02" * 5000, "buffers": b"", "optimizer": bytearray(b"moments")}
    plain = {"lr": 0.1, "names": ["a", "é"]}

    fd, parts = pack_base(objects, plain)
    copy = BaseCopy(os.dup(fd), parts)
    os.close(fd)
    views, back = copy.unpack()

    assert {name: bytes(view) for name, view in views.items()} == {n: bytes(data) for n, data in objects.items()}
    assert back == plain
    assert copy.size_bytes == sum(length for _, length in parts)
    del views
    copy.close()


def test_objects_of_any_buffer_are_copied_by_their_bytes() -> None:
    """A view's length counts its items: four bytes each here."""
    numbers = array.array("f", [1.0, 2.0, 3.0])
    objects = {"array": memoryview(numbers), "numpy": np.arange(6, dtype=np.int64), "none": np.zeros((0, 3))}

    fd, parts = pack_base(objects, {})
    copy = BaseCopy(fd, parts)
    views, _ = copy.unpack()

    assert dict(parts)["array"] == 12
    assert bytes(views["array"]) == numbers.tobytes()
    assert bytes(views["numpy"]) == np.arange(6, dtype=np.int64).tobytes()
    assert bytes(views["none"]) == b""
    del views
    copy.close()


def test_a_copy_may_be_dropped_while_a_put_still_reads_it() -> None:
    """A newer copy of the same step replaces it, or its put has just been reported."""
    fd, parts = pack_base({"params": b"weights"}, {})
    copy = BaseCopy(fd, parts)
    views, _ = copy.unpack()

    copy.close()

    assert bytes(views["params"]) == b"weights"
