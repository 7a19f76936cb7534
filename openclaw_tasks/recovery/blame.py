"""Who is to blame when links between living members break."""

from __future__ import annotations

from openclaw_tasks.recovery.events import LinkBroken


def most_broken(blames: tuple[LinkBroken, ...], suspects: list[int], inside: list[int]) -> int | None:
    """Which of the suspects has the most broken links to others inside; of equals the most blamed one.

    Both ends of a link count: a rank that is cut off blames everybody else.
    """
    pairs = {(b.reporter, b.blamed) for b in blames if b.reporter in inside and b.blamed in inside}
    links = {frozenset(pair) for pair in pairs}

    def score(number: int) -> tuple[int, int]:
        return sum(number in link for link in links), sum(number == blamed for _, blamed in pairs)

    return max((number for number in sorted(suspects) if score(number)[0]), key=score, default=None)
