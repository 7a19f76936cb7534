"""How long each loss took: the numbers of the report's recoveries."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw_tasks.gang.losses import Loss, LossWatch

KILLED = Loss("rank killed by signal 9", step=12, kill_at=100.0, detected_at=100.1)


def report(
    generation: int, computing_at: float, done_at: float, useful: float = 0.0, *, meshed_at: float | None = None
) -> dict[str, Any]:
    return {
        "generation": generation,
        "meshed_at": computing_at if meshed_at is None else meshed_at,
        "computing_at": computing_at,
        "done_at": done_at,
        "useful_seconds": useful,
    }


def test_a_recovery_is_told_when_every_member_has_done_a_step() -> None:
    watch = LossWatch()
    watch.lose(KILLED)
    assert watch.kill_at == 100.0
    watch.formed(2, frozenset({0, 2}), 100.15)

    assert watch.regained(0, report(2, 100.3, 101.0, 0.5, meshed_at=100.18)) == []
    (recovery,) = watch.regained(2, report(2, 100.2, 101.2, 0.75, meshed_at=100.19))

    assert recovery == {
        "step": 12,
        "cause": "rank killed by signal 9",
        "detected_seconds": pytest.approx(0.1),
        "announced_seconds": pytest.approx(0.15),
        "meshed_seconds": pytest.approx(0.19),
        "recovered_seconds": pytest.approx(0.3),  # all survivors compute
        "stepped_seconds": pytest.approx(1.2),
        "overhead_seconds": pytest.approx(1.2 - 0.75),  # less what the last one did anyway
        "steps_lost": 0,
    }
    assert watch.kill_at is None


def test_the_same_members_second_report_is_none_of_our_concern() -> None:
    watch = LossWatch()
    watch.lose(KILLED)
    watch.formed(2, frozenset({0}), 0.0)
    watch.regained(0, report(2, 100.2, 101.0))

    assert watch.regained(0, report(2, 100.2, 102.0)) == []


def test_without_a_loss_nothing_is_told() -> None:
    watch = LossWatch()
    watch.formed(1, frozenset({0}), 0.0)

    assert watch.kill_at is None
    assert watch.regained(0, report(1, 1.0, 2.0)) == []


def test_a_second_loss_before_the_first_is_got_over_shares_the_recovery() -> None:
    watch = LossWatch()
    watch.lose(KILLED)
    watch.formed(2, frozenset({0, 2}), 0.0)
    watch.regained(0, report(2, 100.2, 100.9))
    watch.lose(Loss("rank killed by signal 9", 12, 100.5, 100.6))
    watch.formed(3, frozenset({0}), 0.0)
    assert watch.kill_at == 100.0

    assert watch.regained(2, report(2, 100.2, 101.0)) == [], "an older formation's report"
    first, second = watch.regained(0, report(3, 100.8, 101.0))

    assert first["recovered_seconds"] == pytest.approx(0.8)
    assert second["recovered_seconds"] == pytest.approx(0.3)


def test_a_loss_is_got_over_only_in_a_formation_that_was_made_after_it() -> None:
    watch = LossWatch()
    watch.lose(KILLED)
    watch.formed(2, frozenset({0, 2}), 0.0)
    watch.regained(0, report(2, 100.2, 101.0))
    watch.lose(Loss("agent lost", 13, 101.1, 101.2))

    (only,) = watch.regained(2, report(2, 100.2, 101.0))

    assert only["cause"] == "rank killed by signal 9"
    assert watch.kill_at == 101.1
    watch.formed(3, frozenset({0}), 0.0)
    (other,) = watch.regained(0, report(3, 101.5, 101.6))
    assert other["cause"] == "agent lost"


def test_no_step_is_lost_while_somebody_lives_who_has_applied_it() -> None:
    watch = LossWatch()
    watch.applied(12)
    watch.lose(KILLED)
    watch.formed(2, frozenset({0}), 0.0)
    watch.meshed(2, 12)

    assert watch.regained(0, report(2, 100.2, 101.0))[0]["steps_lost"] == 0


def test_steps_that_only_the_dead_had_applied_are_lost() -> None:
    watch = LossWatch()
    watch.applied(11)
    watch.applied(12)
    watch.lose(KILLED)
    watch.formed(2, frozenset({0, 2}), 0.0)
    watch.meshed(2, 11)
    watch.meshed(2, 11)

    watch.regained(0, report(2, 100.2, 101.0))
    assert watch.regained(2, report(2, 100.2, 101.0))[0]["steps_lost"] == 1


def test_a_gang_that_begins_again_from_storage_loses_what_was_not_durable() -> None:
    watch = LossWatch()
    watch.applied(40)
    watch.lose(KILLED)
    watch.formed(7, frozenset({5, 6}), 0.0)
    watch.meshed(7, 32)
    watch.meshed(7, 32)
    watch.applied(33)

    watch.regained(5, report(7, 104.0, 105.0))
    assert watch.regained(6, report(7, 104.0, 105.0))[0]["steps_lost"] == 8


def test_after_a_new_beginning_steps_count_from_there() -> None:
    watch = LossWatch()
    watch.applied(40)
    watch.lose(KILLED)
    watch.formed(7, frozenset({5}), 0.0)
    watch.meshed(7, 32)
    watch.regained(5, report(7, 104.0, 105.0))

    watch.applied(34)
    watch.lose(Loss("died", 35, 110.0, 110.1))
    watch.formed(8, frozenset({5}), 0.0)
    watch.meshed(8, 33)

    assert watch.regained(5, report(8, 110.2, 110.3))[0]["steps_lost"] == 1


def test_an_earlier_recoverys_lost_steps_do_not_count_for_the_next() -> None:
    watch = LossWatch()
    watch.applied(12)
    watch.lose(KILLED)
    watch.formed(2, frozenset({0}), 0.0)
    watch.meshed(2, 10)
    assert watch.regained(0, report(2, 100.2, 101.0))[0]["steps_lost"] == 2

    watch.applied(20)
    watch.lose(Loss("died", 21, 110.0, 110.1))
    watch.formed(3, frozenset({0}), 0.0)
    watch.meshed(3, 20)

    assert watch.regained(0, report(3, 110.2, 110.3))[0]["steps_lost"] == 0


def test_a_newcomer_that_meshes_without_a_loss_changes_nothing() -> None:
    watch = LossWatch()
    watch.applied(30)
    watch.meshed(1, 28)
    watch.lose(KILLED)
    watch.formed(2, frozenset({0}), 0.0)
    watch.meshed(2, 30)

    assert watch.regained(0, report(2, 100.2, 101.0))[0]["steps_lost"] == 0


def test_overhead_is_never_negative() -> None:
    watch = LossWatch()
    watch.lose(KILLED)
    watch.formed(2, frozenset({0}), 0.0)

    assert watch.regained(0, report(2, 100.2, 101.0, useful=1.5))[0]["overhead_seconds"] == 0.0


def test_late_news_of_an_older_formation_says_nothing_of_lost_steps() -> None:
    watch = LossWatch()
    watch.applied(12)
    watch.lose(KILLED)
    watch.formed(3, frozenset({0}), 0.0)
    watch.meshed(2, 9)
    watch.meshed(3, 12)

    assert watch.regained(0, report(3, 100.2, 101.0))[0]["steps_lost"] == 0


def test_a_loss_after_which_no_step_was_left_is_told_at_the_end() -> None:
    """A rank that dies in the last barrier: nothing had to be computed again, and no time to that is known."""
    watch = LossWatch()
    watch.applied(12)
    watch.lose(KILLED)
    watch.formed(2, frozenset({0}), 0.0)

    (told,) = watch.end()

    unknown = [name for name, value in told.items() if value is None]
    assert unknown == [
        "announced_seconds",
        "meshed_seconds",
        "recovered_seconds",
        "stepped_seconds",
        "overhead_seconds",
    ]
    assert (told["cause"], told["steps_lost"]) == (KILLED.cause, 0)
    assert watch.end() == []


def test_a_step_done_in_the_new_formation_is_not_lost_when_a_slower_member_tells_where_it_began() -> None:
    """The members' news come over different agents, in no order."""
    watch = LossWatch()
    watch.formed(1, frozenset({0, 1, 2}), 0.0)
    watch.applied(11, generation=1)
    watch.lose(KILLED)
    watch.formed(2, frozenset({0, 1}), 0.0)
    watch.meshed(2, 11)
    watch.applied(12, generation=2)
    watch.meshed(2, 11)

    watch.regained(0, report(2, 100.2, 101.0))
    assert watch.regained(1, report(2, 100.2, 101.0))[0]["steps_lost"] == 0


def test_a_step_of_the_old_formation_that_is_heard_of_late_was_lost_nevertheless() -> None:
    watch = LossWatch()
    watch.formed(1, frozenset({0, 1}), 0.0)
    watch.applied(11, generation=1)
    watch.lose(KILLED)
    watch.formed(2, frozenset({1}), 0.0)
    watch.meshed(2, 11)
    watch.applied(12, generation=1)

    assert watch.regained(1, report(2, 100.2, 101.0))[0]["steps_lost"] == 1


def test_steps_of_a_formation_count_for_the_loss_that_ends_it() -> None:
    watch = LossWatch()
    watch.formed(1, frozenset({0, 1}), 0.0)
    watch.applied(12, generation=1)
    watch.lose(KILLED)
    watch.formed(2, frozenset({1}), 0.0)
    watch.meshed(2, 11)

    assert watch.regained(1, report(2, 100.2, 101.0))[0]["steps_lost"] == 1


def test_the_step_of_a_loss_is_the_one_that_was_open_though_the_last_was_not_heard_of_yet() -> None:
    watch = LossWatch()
    watch.lose(KILLED)
    watch.formed(2, frozenset({0, 2}), 0.0)
    watch.meshed(2, 12)
    watch.lose(Loss("agent lost", 15, 101.0, 101.1))
    watch.formed(3, frozenset({0}), 0.0)
    watch.meshed(3, 14)

    first, second = watch.regained(0, report(3, 101.2, 101.3))
    assert (first["step"], second["step"]) == (13, 15)
