"""Which group is put next, and by whom."""

from __future__ import annotations

from openclaw_tasks.gang.ledger import GROUP_BYTES, GROUP_SECONDS, RETRY_SECONDS, Ledger, Order, Span


def ledger(durable_step: int = 0, group_steps: int = 4, **spans: tuple[int, int]) -> Ledger:
    """A ledger whose agents hold small records of these steps."""
    made = Ledger(durable_step, group_steps)
    for agent, (first, last) in spans.items():
        made.holds(agent, Span(first, last, 10 * (last - first + 1)))
    return made


def test_a_full_group_is_put_at_once() -> None:
    assert ledger(a=(1, 4)).next_order(0.0) == Order("a", 1, 4)


def test_of_many_small_records_one_group_takes_all() -> None:
    """What storage was behind by is caught up with in one put."""
    assert ledger(a=(1, 60)).next_order(0.0) == Order("a", 1, 60)


def test_fewer_records_wait_for_a_second() -> None:
    books = ledger(a=(1, 3))

    assert books.next_order(5.0) is None
    assert books.next_order(5.0 + 0.9 * GROUP_SECONDS) is None
    assert books.next_order(5.0 + GROUP_SECONDS) == Order("a", 1, 3)


def test_the_wait_begins_anew_after_each_group() -> None:
    books = ledger(a=(1, 4))
    books.next_order(0.0)
    books.holds("a", Span(5, 6, 20))
    books.done(4)

    assert books.next_order(10.0) is None
    assert books.next_order(10.0 + GROUP_SECONDS) == Order("a", 5, 6)


def test_a_record_that_is_large_enough_is_a_group_of_its_own() -> None:
    books = Ledger(0, group_steps=1)
    books.holds("a", Span(1, 3, 3 * GROUP_BYTES))

    assert books.next_order(0.0) == Order("a", 1, 1)


def test_large_records_are_put_before_the_group_is_full_and_in_groups_of_steps() -> None:
    books = Ledger(0, group_steps=4)
    books.holds("a", Span(1, 2, GROUP_BYTES))
    assert books.next_order(0.0) == Order("a", 1, 2)

    books = Ledger(0, group_steps=4)
    books.holds("a", Span(1, 40, 40 * GROUP_BYTES))
    assert books.next_order(0.0) == Order("a", 1, 4)


def test_a_boundary_is_put_without_waiting() -> None:
    books = ledger(a=(1, 2))
    books.urgent_through = 2
    assert books.next_order(0.0) == Order("a", 1, 2)
    books.done(2)
    books.holds("a", Span(3, 3, 10))

    assert books.next_order(0.0) is None, "only what was asked for is urgent"


def test_only_one_group_is_on_its_way() -> None:
    books = ledger(a=(1, 4), b=(1, 9))
    order = books.next_order(0.0)

    assert books.in_flight == order
    assert books.next_order(9.0) is None


def test_agents_that_hold_the_records_take_turns() -> None:
    books = ledger(a=(1, 40), b=(1, 40), c=(30, 40))
    agents = []
    for _ in range(4):
        order = books.next_order(0.0)
        assert order is not None
        agents.append(order.agent)
        books.done(books.durable_step + 4)

    assert agents == ["a", "b", "a", "b"]


def test_a_failed_put_is_repeated_by_the_next_agent_after_a_moment() -> None:
    books = ledger(a=(1, 4), b=(1, 4))
    books.next_order(0.0)
    books.failed(7.0)

    assert books.next_order(7.0) is None
    assert books.next_order(7.0 + RETRY_SECONDS) == Order("b", 1, 4)


def test_a_lone_agent_tries_again_itself() -> None:
    books = ledger(a=(1, 4))
    for attempt in range(5):
        assert books.next_order(float(attempt)) == Order("a", 1, 4)
        books.failed(float(attempt))


def test_a_group_of_an_agent_that_is_gone_is_put_by_another() -> None:
    books = ledger(a=(1, 4), b=(1, 6))
    assert books.next_order(0.0) == Order("a", 1, 4)

    books.forget("b")
    assert books.in_flight == Order("a", 1, 4), "another agent's end does not matter to it"
    books.holds("b", Span(1, 6, 60))
    books.forget("a")

    assert books.in_flight is None
    assert books.next_order(0.0) == Order("b", 1, 6)


def test_the_durable_step_never_goes_back() -> None:
    books = ledger(durable_step=8, a=(9, 12))
    books.done(4)

    assert books.durable_step == 8


def test_what_is_durable_is_not_put_again() -> None:
    books = ledger(durable_step=8, a=(5, 12))

    assert books.next_order(0.0) == Order("a", 9, 12)
    assert books.newest == 12
    assert ledger(durable_step=8, a=(5, 8)).next_order(99.0) is None


def test_the_log_is_hopeless_when_nobody_holds_the_next_record_but_somebody_later_ones() -> None:
    books = ledger(durable_step=8, a=(12, 20))
    assert books.is_hopeless(["a"])
    assert not books.is_hopeless([]), "of agents that are gone nothing is known"
    assert books.next_order(99.0) is None

    books.holds("b", Span(9, 13, 50))
    assert not books.is_hopeless(["a", "b"])


def test_the_log_is_not_hopeless_while_the_missing_records_are_on_their_way() -> None:
    books = ledger(durable_step=8, a=(9, 12), b=(13, 20))
    books.next_order(0.0)

    assert not books.is_hopeless(["b"])


def test_an_idle_ledger_is_not_hopeless() -> None:
    assert not ledger(durable_step=8).is_hopeless(["a"])
    assert not ledger(durable_step=8, a=(3, 8)).is_hopeless(["a"])


def test_a_gang_that_begins_again_waits_for_nothing_that_was_held_before() -> None:
    books = ledger(durable_step=8, a=(12, 20), b=(9, 12))
    books.next_order(99.0)

    books.forget_all()

    assert books.in_flight is None
    assert books.newest == 8
    assert not books.is_hopeless(["a", "b"])


def test_after_the_end_a_record_that_nobody_holds_is_hopeless() -> None:
    books = ledger(durable_step=8, a=(9, 12))

    assert not books.is_hopeless(["a"], ended_at=12)
    assert books.is_hopeless([], ended_at=12)
    assert not books.is_hopeless([], ended_at=8)


def test_after_a_fresh_start_groups_are_full_again() -> None:
    """A lost gang's last records were urgent; those of the next gang are not."""
    books = ledger(durable_step=8)
    books.urgent_through = 2**62
    books.forget_all()
    books.holds("a", Span(9, 9, 10))

    assert books.next_order(0.0) is None
