"""From which step a run's bits are not those of one undisturbed run, since a start changed what they rest on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from openclaw_tasks.checkpoint.reader import RunReader

_WORDS: Final = {
    "recipe": "the recipe's source",
    "arithmetic": "the machine's arithmetic",
    "data": "the data",
}


def changes(reader: RunReader) -> list[str]:
    """One line for each such start, in order, over the run's whole life: starts stay when their groups are dropped."""
    eras: list[tuple[int, Mapping[str, Any]]] = []  # the step after which it begins, and what it rests on
    for start in reader.starts():
        while eras and eras[-1][0] >= start.end_step:
            eras.pop()  # it put nothing, or a rollback took it back
        eras.append((start.end_step, start.identity.get("fingerprints", {})))
    found = []
    for (_, before), (end_step, now) in itertools.pairwise(eras):
        what = [words for name, words in _WORDS.items() if now.get(name) != before.get(name)]
        if what and end_step < reader.last_step:
            found.append(
                f"{' and '.join(what)} changed before step {end_step + 1}: from that step on the bits are not "
                "promised to be those of an undisturbed run"
            )
    return found
