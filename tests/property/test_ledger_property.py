"""The ledger over agents with real rings: ranks die and join, agents die, puts fail, storage lags."""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import given, settings

from openclaw_tasks.gang.ledger import Ledger, Order, Span
from openclaw_tasks.gang.records import HeldRecords
from openclaw_tasks.training.ring import RecordRing

SLOTS = 12
AGENTS = ("a", "b", "c")


@dataclass
class Place:
    """An agent: what it holds, the ring of its living rank, and what it has told."""

    records: HeldRecords = field(default_factory=HeldRecords)
    ring: RecordRing | None = None
    told: tuple[int, int, int] | None = None
    all_rings: list[RecordRing] = field(default_factory=list)

    def start_rank(self) -> None:
        self.ring = RecordRing.create(SLOTS, 64)
        self.all_rings.append(self.ring)
        self.records.add(self.ring)

    def lose_rank(self) -> None:
        assert self.ring is not None
        self.records.retire(self.ring)
        self.ring = None

    def steps_held(self) -> set[int]:
        return set(self.records._index())


class Storage:
    """A supervisor's storage work, with time and failures by hand."""

    def __init__(self, durable_step: int) -> None:
        self.ledger = Ledger(durable_step, group_steps=3)
        self.places = {name: Place() for name in AGENTS}
        for place in self.places.values():
            place.records.advance(durable_step)
            place.start_rank()
        self.step = durable_step
        self.now = 0.0
        self.first_durable = durable_step
        self.groups: list[tuple[int, int]] = []
        self.in_flight: Order | None = None

    def train(self) -> None:
        """One step on every living rank, if all have room."""
        rings = [place.ring for place in self.places.values() if place.ring is not None]
        slots = [ring.claim() for ring in rings]
        if not rings or None in slots:
            return
        self.step += 1
        for ring, slot in zip(rings, slots, strict=True):
            assert slot is not None
            ring.buffer(slot)[:8] = self.step.to_bytes(8, "little")
            ring.publish(slot, self.step, 8)
            ring.mark_final(self.step - 1)

    def tell_spans(self) -> None:
        for name, place in self.places.items():
            span = place.records.span()
            if span is not None and span != place.told:
                place.told = span
                self.ledger.holds(name, Span(*span))

    def order(self) -> None:
        durable_before = self.ledger.durable_step
        order = self.ledger.next_order(self.now)
        if order is None:
            return
        assert self.in_flight is None, "two groups on their way"
        assert order.first == durable_before + 1
        self.in_flight = order
        records = self.places[order.agent].records.records(order.first, order.last)
        assert [int.from_bytes(record, "little") for record in records] == list(range(order.first, order.last + 1))

    def finish(self, *, fails: bool) -> None:
        order = self.in_flight
        if order is None:
            return
        self.in_flight = None
        if fails:
            self.ledger.failed(self.now)
            return
        self.groups.append((order.first, order.last))
        self.ledger.done(order.last)
        for place in self.places.values():
            place.records.advance(self.ledger.durable_step)

    def lose_agent(self, name: str) -> None:
        place = self.places.pop(name)
        self.ledger.forget(name)
        if self.in_flight is not None and self.in_flight.agent == name:
            self.in_flight = None
        close(place)

    def reachable_step(self) -> int:
        """The last step up to which somebody who lives holds every record after the durable ones."""
        held = set().union(*(place.steps_held() for place in self.places.values()))
        step = self.ledger.durable_step
        while step + 1 in held:
            step += 1
        return step

    def check(self) -> None:
        ends = [self.first_durable, *(last for _, last in self.groups)]
        assert all(first == end + 1 for (first, _), end in zip(self.groups, ends, strict=False))
        assert self.ledger.durable_step == ends[-1]


def close(place: Place) -> None:
    for ring in place.records._rings:
        ring.close()


MOVES = st.sampled_from(
    ["train", "train", "train", "tell", "order", "done", "fails", "wait", "kill rank", "start rank", "kill agent"]
)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 5), st.lists(st.tuples(MOVES, st.integers(0, 2)), max_size=120))
def test_groups_follow_each_other_and_every_record_that_is_held_becomes_durable(
    durable_step: int, moves: list[tuple[str, int]]
) -> None:
    storage = Storage(durable_step)
    for move, which in moves:
        names = sorted(storage.places)
        name = names[which % len(names)] if names else None
        match move:
            case "train":
                storage.train()
            case "tell":
                storage.tell_spans()
            case "order":
                storage.order()
            case "done" | "fails":
                storage.finish(fails=move == "fails")
            case "wait":
                storage.now += 0.4
            case "kill rank" if name and storage.places[name].ring is not None:
                storage.places[name].lose_rank()
            case "start rank" if name and storage.places[name].ring is None:
                storage.places[name].start_rank()
            case "kill agent" if name:
                storage.lose_agent(name)
        storage.check()

    expected = storage.reachable_step()
    for _ in range(100):
        storage.now += 0.4
        storage.tell_spans()
        storage.order()
        storage.finish(fails=False)
    storage.check()

    assert storage.ledger.durable_step == expected
    beyond = any(max(place.steps_held(), default=0) > expected for place in storage.places.values())
    assert storage.ledger.is_hopeless(list(storage.places)) == beyond
    for place in storage.places.values():
        close(place)
