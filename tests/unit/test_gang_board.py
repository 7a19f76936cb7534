"""What the flow's stages see of the gang, and wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from openclaw_tasks.errors import DamagedError, GangLostError, RunCancelledError, RunError
from openclaw_tasks.gang.board import Board, Facts

PATIENCE_SECONDS = 20.0


def setting(name: str, value: object) -> Callable[[Facts], None]:
    return lambda facts: setattr(facts, name, value)


def meanwhile(change: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=change)
    thread.start()
    return thread


def test_what_holds_already_is_returned_at_once() -> None:
    board = Board()
    board.update(setting("agents", ("a", "b")))

    assert board.wait(lambda facts: facts.agents, timeout_seconds=0.0) == ("a", "b")
    assert board.read(lambda facts: len(facts.agents)) == 2


def test_at_the_timeout_the_answer_is_none() -> None:
    assert Board().wait(lambda facts: facts.step >= 1, timeout_seconds=0.01) is None


def test_a_waiting_stage_is_woken_by_the_change_it_waits_for() -> None:
    board = Board()

    def train() -> None:
        for step in range(1, 6):
            board.update(setting("step", step))

    thread = meanwhile(train)
    assert board.wait(lambda facts: facts.step >= 5 and facts.step, timeout_seconds=PATIENCE_SECONDS) == 5
    thread.join()


def test_many_stages_may_wait_for_different_things() -> None:
    board = Board()
    found: list[object] = []
    waiting = [
        meanwhile(lambda s=step: found.append(board.wait(lambda facts: facts.step >= s and s)))  # type: ignore[misc]
        for step in (1, 2, 3)
    ]
    for step in (1, 2, 3):
        board.update(setting("step", step))
    for thread in waiting:
        thread.join(PATIENCE_SECONDS)

    assert sorted(found, key=str) == [1, 2, 3]


def test_the_runs_error_reaches_everybody_who_waits() -> None:
    """ray-project/ray#29927: the first error is the run's error, and nobody waits on."""
    board = Board()
    error = DamagedError("step 5: a record does not match its digest")
    thread = meanwhile(lambda: board.update(setting("error", error)))

    with pytest.raises(DamagedError) as caught:
        board.wait(lambda facts: facts.step >= 9, timeout_seconds=PATIENCE_SECONDS)
    thread.join()

    assert caught.value is error
    with pytest.raises(DamagedError):
        board.wait(lambda facts: facts.step >= 9, through_loss=True)


def test_what_was_waited_for_counts_though_an_error_came_too() -> None:
    board = Board()
    board.update(setting("error", RunError("later")))
    board.update(setting("step", 9))

    assert board.wait(lambda facts: facts.step >= 9)


def test_a_lost_gang_ends_the_wait_with_cause_and_step() -> None:
    board = Board()
    board.update(setting("step", 17))
    board.update(setting("lost_cause", "agent lost"))

    with pytest.raises(GangLostError, match=r"no rank is left \(agent lost\); last step 17"):
        board.wait(lambda facts: facts.step >= 20)
    assert board.wait(lambda facts: facts.is_settled, timeout_seconds=0.0, through_loss=True) is None


def test_a_cancel_reaches_stages_but_not_who_sees_the_run_to_its_end() -> None:
    board = Board()
    board.update(setting("cancelled", RunCancelledError("run 'a' was cancelled")))

    with pytest.raises(RunCancelledError):
        board.wait(lambda facts: facts.step >= 9)
    assert board.wait(lambda facts: facts.is_ended, timeout_seconds=0.0, through_error=True) is None
    board.update(setting("is_ended", True))
    assert board.wait(lambda facts: facts.is_ended, through_error=True)


def test_an_error_counts_more_than_a_cancel() -> None:
    board = Board()
    board.update(setting("cancelled", RunCancelledError("run 'a' was cancelled")))
    board.update(setting("error", DamagedError("step 5: a record does not match its digest")))

    with pytest.raises(DamagedError):
        board.wait(lambda facts: facts.step >= 9, through_loss=True)


def test_a_change_that_raises_leaves_the_board_usable() -> None:
    board = Board()
    with pytest.raises(ZeroDivisionError):
        board.update(lambda facts: 1 // facts.step)

    board.update(setting("step", 1))
    assert board.read(lambda facts: facts.step) == 1
