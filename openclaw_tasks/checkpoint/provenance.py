"""From which step a run's bits are not those of one undisturbed run, since a start changed what they rest on."""

from __future__ import annotations

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
    """One line for each such start, in order, as far back as the log is kept."""
    found: list[str] = []
    previous: Mapping[str, Any] | None = None
    seen: set[tuple[int, str]] = set()
    for group in reader.lineage.groups:
        start = (group.epoch, group.writer)
        if start in seen:
            continue
        seen.add(start)
        present = reader.identity_at(*start).get("fingerprints", {})
        if previous is not None:
            what = [words for name, words in _WORDS.items() if present.get(name) != previous.get(name)]
            if what:
                found.append(
                    f"{' and '.join(what)} changed before step {group.first}: from that step on the bits are not "
                    "promised to be those of an undisturbed run"
                )
        previous = present
    return found
