"""What a rank makes of the supervisor's orders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from openclaw_tasks.training.control import ControlChannel, ControlClosed
from openclaw_tasks.training.orders import Dismissed, FormationChanged, Orders
from openclaw_tasks.training.progress import Phase, ProgressPage


class Supervisor:
    """The other end of the line, and the rank's page."""

    def __init__(self) -> None:
        self.line, self.rank_line = ControlChannel.pair()
        self.page = ProgressPage.create()

    def say(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            self.line.send(message)

    def heard(self) -> list[dict[str, Any]]:
        found = []
        while (received := self.line.receive()) is not None:
            found.append(received[0])
        return found


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    end = Supervisor()
    yield end
    end.line.close()
    end.rank_line.close()
    end.page.close()


@pytest.fixture
def orders(supervisor: Supervisor) -> Orders:
    return Orders(supervisor.rank_line, supervisor.page)


def formation(generation: int, when: str = "now", **other: Any) -> dict[str, Any]:
    return {
        "type": "formation",
        "generation": generation,
        "when": when,
        "newcomer": False,
        "rank": 0,
        "members": [4, 7],
        "addresses": [["127.0.0.1", 4004], ["127.0.0.1", 4007]],
        "runs": [[0, 4], [4, 8]],
        "open_runs": [[0, 2], [2, 8]],
        "restore_step": 16,
        "kill_at": 123.5,
        "strikes": {},
        "holds": [],
        "stop": False,
        **other,
    }


def serving(orders: Orders, supervisor: Supervisor, generation: int, **other: Any) -> None:
    supervisor.say(formation(generation, **other))
    assert orders.next_formation().generation == generation


def test_a_formation_is_read_as_it_was_announced(supervisor: Supervisor, orders: Orders) -> None:
    supervisor.say(formation(3))

    found = orders.next_formation()

    assert (found.generation, found.rank, found.members) == (3, 0, (4, 7))
    assert found.addresses == (("127.0.0.1", 4004), ("127.0.0.1", 4007))
    assert (found.runs, found.open_runs) == (((0, 4), (4, 8)), ((0, 2), (2, 8)))
    assert (found.restore_step, found.kill_at) == (16, 123.5)


def test_of_several_formations_that_came_the_newest_is_served(supervisor: Supervisor, orders: Orders) -> None:
    supervisor.say(formation(1), formation(2), formation(4))

    assert orders.next_formation().generation == 4


def test_a_formation_that_replaces_the_current_one_interrupts(supervisor: Supervisor, orders: Orders) -> None:
    serving(orders, supervisor, 1)
    orders.breathe()

    supervisor.say(formation(2))

    with pytest.raises(FormationChanged):
        orders.breathe()
    with pytest.raises(FormationChanged):
        orders.leave_if_replaced()
    assert orders.next_formation().generation == 2
    orders.breathe()


def test_an_old_formation_that_comes_late_changes_nothing(supervisor: Supervisor, orders: Orders) -> None:
    serving(orders, supervisor, 3)

    supervisor.say(formation(2), formation(3))

    orders.breathe()


def test_a_boundary_formation_does_not_interrupt_and_is_heard_of(supervisor: Supervisor, orders: Orders) -> None:
    serving(orders, supervisor, 1)
    assert orders.heard == 0

    supervisor.say(formation(2, "boundary"))
    orders.breathe()

    assert orders.heard == 2
    orders.change_to(2)
    assert orders.next_formation().generation == 2
    assert orders.heard == 0


def test_a_newcomer_enters_its_boundary_formation_at_once(supervisor: Supervisor, orders: Orders) -> None:
    supervisor.say(formation(2, "boundary", newcomer=True))

    assert orders.next_formation().generation == 2


def test_a_boundary_formation_that_was_replaced_is_not_heard_of_any_more(
    supervisor: Supervisor, orders: Orders
) -> None:
    serving(orders, supervisor, 1)
    supervisor.say(formation(2, "boundary"), formation(3))
    with pytest.raises(FormationChanged):
        orders.breathe()

    assert orders.next_formation().generation == 3
    assert orders.heard == 0


def test_the_groups_change_at_a_boundary_does_not_hide_a_newer_formation(
    supervisor: Supervisor, orders: Orders
) -> None:
    """It may come between the last look at the orders and the group's decision of that step."""
    serving(orders, supervisor, 1, holds=[5])
    supervisor.say(formation(2, "boundary"))
    orders.breathe()
    supervisor.say(formation(3))
    with pytest.raises(FormationChanged):
        orders.hold_at(5)

    orders.change_to(2)

    assert orders.next_formation().generation == 3


def test_a_stop_comes_as_an_order_or_with_a_formation(supervisor: Supervisor, orders: Orders) -> None:
    serving(orders, supervisor, 1)
    assert not orders.stop

    supervisor.say({"type": "stop"})
    orders.breathe()
    assert orders.stop

    serving(orders, supervisor, 2, stop=False)
    assert orders.stop, "a stop stays"


def test_a_dismissed_rank_ends_only_when_no_formation_waits_for_it(supervisor: Supervisor, orders: Orders) -> None:
    supervisor.say(formation(1), {"type": "dismiss"})

    assert orders.next_formation().generation == 1
    assert orders.stop
    with pytest.raises(Dismissed):
        orders.next_formation()


def test_without_an_agent_every_wait_ends(supervisor: Supervisor, orders: Orders) -> None:
    supervisor.line.close()

    with pytest.raises(ControlClosed):
        orders.next_formation()
    with pytest.raises(ControlClosed):
        orders.breathe()


def test_a_rank_strikes_itself_once_in_its_step(supervisor: Supervisor, orders: Orders) -> None:
    serving(orders, supervisor, 1, strikes={"3": "kill-rank", "9": "stop-rank"})

    assert orders.strike_at(2) is None
    assert orders.strike_at(3) == "kill-rank"
    assert orders.strike_at(3) is None
    assert orders.strike_at(9) == "stop-rank"


def test_a_rank_holds_at_a_step_until_it_is_released(supervisor: Supervisor, orders: Orders) -> None:
    serving(orders, supervisor, 1, holds=[5])
    orders.hold_at(4)
    assert supervisor.heard() == []

    supervisor.say({"type": "release", "step": 5})
    orders.hold_at(5)

    assert supervisor.heard() == [{"type": "held", "step": 5}]
    assert supervisor.page.phase is Phase.EXCHANGING
    orders.hold_at(5)
    assert supervisor.heard() == [], "a step is held at once"


def test_a_release_that_came_first_is_remembered(supervisor: Supervisor, orders: Orders) -> None:
    serving(orders, supervisor, 1, holds=[5])
    supervisor.say({"type": "release", "step": 5})
    orders.breathe()

    orders.hold_at(5)

    assert supervisor.heard() == []


def test_a_held_rank_leaves_for_a_newer_formation_and_holds_again(supervisor: Supervisor, orders: Orders) -> None:
    serving(orders, supervisor, 1, holds=[5])
    supervisor.say(formation(2, holds=[5]))

    with pytest.raises(FormationChanged):
        orders.hold_at(5)
    orders.next_formation()
    supervisor.say({"type": "release", "step": 5})
    orders.hold_at(5)

    assert supervisor.heard() == [{"type": "held", "step": 5}] * 2


def test_a_held_rank_is_let_go_by_a_stop(supervisor: Supervisor, orders: Orders) -> None:
    serving(orders, supervisor, 1, holds=[5])
    supervisor.say({"type": "stop"})

    orders.hold_at(5)

    assert orders.stop


def test_every_look_at_the_orders_shows_that_the_rank_moves(supervisor: Supervisor, orders: Orders) -> None:
    before = supervisor.page.beats

    orders.breathe()

    assert supervisor.page.beats > before
