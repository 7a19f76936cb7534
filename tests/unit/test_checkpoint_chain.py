"""Which groups of an epoch's log are its history: the cases, as values."""

from __future__ import annotations

from openclaw_tasks.checkpoint.chain import Attempt, Link, follow
from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.lineage import GroupRef
from openclaw_tasks.checkpoint.paths import GroupName

CODE = Code(5, 2)
EVERYWHERE = frozenset(range(5))
START = Link(0, 0, "")


def attempt(
    sequence: int,
    first: int,
    last: int,
    *,
    previous: str = "",
    number: int = 1,
    seen: frozenset[int] = EVERYWHERE,
    valid: frozenset[int] | None = None,
    unknown: frozenset[int] = frozenset(),
    marked: bool = False,
) -> Attempt:
    name = GroupName(1, "w", sequence, first, last, number)
    valid = seen if valid is None else valid
    digest = digest_of(sequence, first, last)
    ref = GroupRef(1, "w", sequence, number, first, last, previous, digest, 100) if valid else None
    return Attempt(name, ref, seen, valid, unknown, marked)


def digest_of(sequence: int, first: int, last: int) -> str:
    return f"{sequence}:{first}-{last}"


def steps_of(chain: list[GroupRef]) -> list[tuple[int, int, int]]:
    return [(ref.first, ref.last, ref.attempt) for ref in chain]


def test_whole_groups_follow_each_other_by_digest() -> None:
    groups = [attempt(1, 1, 4), attempt(2, 5, 8, previous=digest_of(1, 1, 4))]
    chain, stuck = follow(START, groups[::-1], CODE)
    assert (steps_of(chain), stuck) == ([(1, 4, 1), (5, 8, 1)], None)


def test_any_k_stripes_are_enough() -> None:
    chain, stuck = follow(START, [attempt(1, 1, 4, seen=frozenset({0, 3, 4}), marked=True)], CODE)
    assert (steps_of(chain), stuck) == ([(1, 4, 1)], None)


def test_a_group_put_half_way_is_dropped_however_many_targets_do_not_answer() -> None:
    """Half-put means: no mark, and a target that answers lacks it. (With 5,2 and any stripe seen, waiting for two
    targets that are gone for good would never end.)"""
    half = attempt(1, 1, 4, seen=frozenset({0, 1}), unknown=frozenset({3, 4}))
    assert follow(START, [half], CODE) == ([], None)


def test_a_marked_group_is_waited_for_while_silent_targets_could_make_it_whole() -> None:
    degraded = attempt(1, 1, 4, seen=frozenset({0, 1}), unknown=frozenset({3, 4}), marked=True)
    chain, stuck = follow(START, [degraded], CODE)
    assert chain == []
    assert stuck is not None
    assert not stuck.is_lost
    assert "steps 1 to 4" in stuck.message
    assert "no answer from [3, 4]" in stuck.message


def test_a_group_on_every_target_that_answers_is_lost_when_too_much_of_it_is_damaged() -> None:
    """HarperFast/harper#2016 (b): never resume before it as if that were normal."""
    chain, stuck = follow(START, [attempt(1, 1, 4, valid=frozenset({0, 1}))], CODE)
    assert chain == []
    assert stuck is not None
    assert stuck.is_lost
    assert "damaged on targets [2, 3, 4]" in stuck.message


def test_a_mark_on_fewer_stripes_than_an_acknowledgement_needs_means_nothing() -> None:
    """Its putter was overtaken in the middle of putting it, and will not acknowledge."""
    assert follow(START, [attempt(1, 1, 4, seen=frozenset({2, 3}), marked=True)], CODE) == ([], None)


def test_a_stripe_of_a_later_group_proves_that_the_missing_one_was_acknowledged() -> None:
    missing = attempt(2, 5, 8, previous=digest_of(1, 1, 4), seen=frozenset({0, 1}))
    later = attempt(3, 9, 12, previous=digest_of(2, 5, 8), seen=frozenset({4}))
    chain, stuck = follow(START, [attempt(1, 1, 4), missing, later], CODE)
    assert steps_of(chain) == [(1, 4, 1)]
    assert stuck is not None
    assert stuck.is_lost
    assert "steps 5 to 8" in stuck.message


def test_of_repeated_attempts_the_one_that_the_next_group_names_is_taken() -> None:
    """A fresh gang may cut elsewhere."""
    given_up, taken = attempt(1, 1, 5), attempt(1, 1, 4, number=2)
    following = attempt(2, 5, 6, previous=digest_of(1, 1, 4))
    chain, stuck = follow(START, [given_up, taken, following], CODE)
    assert (steps_of(chain), stuck) == ([(1, 4, 2), (5, 6, 1)], None)


def test_what_an_agent_put_on_its_own_is_taken_though_it_did_not_know_of_the_latest_groups() -> None:
    """Its supervisor was killed before it could tell; no step is lost."""
    acknowledged = [attempt(1, 1, 4), attempt(2, 5, 6, previous=digest_of(1, 1, 4))]
    chain, stuck = follow(START, [*acknowledged, attempt(1, 1, 9, number=1000)], CODE)
    assert (steps_of(chain), stuck) == ([(1, 9, 1000)], None)


def test_of_repeated_attempts_at_the_end_the_one_that_reaches_further_is_taken() -> None:
    chain, stuck = follow(START, [attempt(1, 1, 4, number=2), attempt(1, 1, 8)], CODE)
    assert (steps_of(chain), stuck) == ([(1, 8, 1)], None)


def test_the_same_group_twice_is_one_and_the_better_placed_attempt_stands_for_it() -> None:
    poor = attempt(1, 1, 4, seen=frozenset({0, 1, 2}), marked=True)
    chain, stuck = follow(START, [poor, attempt(1, 1, 4, number=2)], CODE)
    assert (steps_of(chain), stuck) == ([(1, 4, 2)], None)


def test_an_acknowledged_attempt_that_is_gone_is_no_loss_when_another_holds_its_steps() -> None:
    gone = attempt(1, 1, 4, seen=EVERYWHERE, valid=frozenset())
    following = attempt(2, 5, 6, previous="unknown", seen=frozenset({1}))
    chain, stuck = follow(START, [gone, attempt(1, 1, 8, number=2), following], CODE)
    assert (steps_of(chain), stuck) == ([(1, 8, 2)], None)


def test_after_retention_the_chain_begins_with_the_group_that_crosses_the_floor() -> None:
    floor = Link(None, 6, None)
    groups = [attempt(4, 5, 8, previous="deleted"), attempt(5, 9, 12, previous=digest_of(4, 5, 8))]
    chain, stuck = follow(floor, groups, CODE)
    assert (steps_of(chain), stuck) == ([(5, 8, 1), (9, 12, 1)], None)
    chain, stuck = follow(floor, groups[1:], CODE)
    assert chain == []
    assert stuck is not None
    assert "steps 7 to 8" in stuck.message


def test_one_target_has_no_redundancy_and_is_enough() -> None:
    only = frozenset({0})
    chain, stuck = follow(START, [attempt(1, 1, 4, seen=only)], Code(1, 0))
    assert (steps_of(chain), stuck) == ([(1, 4, 1)], None)
    _, stuck = follow(START, [attempt(1, 1, 4, seen=only, valid=frozenset())], Code(1, 0))
    assert stuck is not None
    assert stuck.is_lost
