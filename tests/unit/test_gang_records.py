"""The records that an agent holds over the rings of its ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from openclaw_tasks.gang.records import HeldRecords
from openclaw_tasks.training.ring import RecordRing


@pytest.fixture
def rings() -> Iterator[list[RecordRing]]:
    made = [RecordRing.create(8, 64) for _ in range(2)]
    yield made
    for ring in made:
        if not is_closed(ring):
            ring.close()


def is_closed(ring: RecordRing) -> bool:
    try:
        ring.final_step  # noqa: B018
    except ValueError:  # its memory is released
        return True
    return False


def fill(ring: RecordRing, first: int, last: int, final: int | None = None) -> None:
    for step in range(first, last + 1):
        slot = ring.claim()
        assert slot is not None
        ring.buffer(slot)[:step] = bytes([step]) * step
        ring.publish(slot, step, step)
    ring.mark_final(last if final is None else final)


def test_an_agent_without_final_records_has_nothing_to_tell(rings: list[RecordRing]) -> None:
    records = HeldRecords()
    assert records.span() is None

    records.add(rings[0])
    fill(rings[0], 1, 1, final=0)

    assert records.span() is None


def test_the_span_counts_final_records_and_their_bytes(rings: list[RecordRing]) -> None:
    records = HeldRecords()
    records.add(rings[0])
    fill(rings[0], 1, 4, final=3)

    assert records.span() == (1, 3, 1 + 2 + 3)
    assert [bytes(record) for record in records.records(2, 3)] == [b"\2\2", b"\3\3\3"]


def test_the_rings_of_a_dead_rank_and_of_its_successor_make_one_run(rings: list[RecordRing]) -> None:
    records = HeldRecords()
    records.add(rings[0])
    fill(rings[0], 1, 3)
    records.retire(rings[0])
    records.add(rings[1])
    fill(rings[1], 3, 5)

    assert records.span() == (1, 5, 15)
    assert [len(record) for record in records.records(1, 5)] == [1, 2, 3, 4, 5]


def test_with_a_gap_between_two_ranks_the_run_that_is_due_comes_first(rings: list[RecordRing]) -> None:
    records = HeldRecords()
    records.add(rings[0])
    fill(rings[0], 1, 2)
    records.retire(rings[0])
    records.add(rings[1])
    fill(rings[1], 6, 7)

    assert records.span() == (1, 2, 3)
    records.advance(2)
    assert records.span() == (6, 7, 13)


def test_what_is_durable_is_given_back_and_told_no_more(rings: list[RecordRing]) -> None:
    records = HeldRecords()
    records.add(rings[0])
    fill(rings[0], 1, 8)
    assert rings[0].claim() is None

    records.advance(5)

    assert records.span() == (6, 8, 21)
    assert rings[0].claim() is not None
    records.advance(3)
    assert records.durable_step == 5, "the durable step never goes back"


def test_a_ring_that_comes_late_gives_back_what_is_durable_already(rings: list[RecordRing]) -> None:
    records = HeldRecords()
    records.advance(2)
    fill(rings[0], 1, 4)

    records.add(rings[0])

    assert records.span() == (3, 4, 7)
    assert rings[0].claim() == 0


def test_a_dead_ranks_ring_goes_as_soon_as_nothing_in_it_is_needed(rings: list[RecordRing]) -> None:
    records = HeldRecords()
    records.add(rings[0])
    fill(rings[0], 1, 3, final=2)
    records.retire(rings[0])
    assert not is_closed(rings[0])

    records.advance(2)

    assert is_closed(rings[0]), "the record of step 3 never became final"
    assert records.span() is None


def test_a_living_ranks_ring_stays_when_it_is_empty(rings: list[RecordRing]) -> None:
    records = HeldRecords()
    records.add(rings[0])
    fill(rings[0], 1, 2)
    records.advance(2)

    fill(rings[0], 3, 3)

    assert records.span() == (3, 3, 3)


def test_an_empty_ring_of_a_dead_rank_goes_at_once(rings: list[RecordRing]) -> None:
    records = HeldRecords()
    records.add(rings[0])
    records.retire(rings[0])

    assert is_closed(rings[0])


def test_records_that_a_put_still_reads_outlive_their_ring(rings: list[RecordRing]) -> None:
    """The putting thread may hold its views for a moment after it has reported."""
    records = HeldRecords()
    records.add(rings[0])
    fill(rings[0], 1, 2)
    views = records.records(1, 2)
    records.retire(rings[0])

    records.advance(2)

    assert records.span() is None
    assert [bytes(view) for view in views] == [b"\1", b"\2\2"]


def test_a_gang_that_begins_again_lets_go_of_everything(rings: list[RecordRing]) -> None:
    records = HeldRecords()
    records.add(rings[0])
    fill(rings[0], 1, 4, final=3)
    records.retire(rings[0])

    records.discard()

    assert records.span() is None
    assert is_closed(rings[0])
