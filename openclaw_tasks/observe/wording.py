"""Numbers and tables as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

NOT_KNOWN: Final = "–"

_MAX_CELL_CHARACTERS: Final = 200


def format_bytes(size_bytes: float | None) -> str:
    """As `1.23 MB`, in powers of 1000."""
    if size_bytes is None:
        return NOT_KNOWN
    value = float(size_bytes)
    for unit in ("B", "KB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def format_seconds(seconds: float | None) -> str:
    """As `35 ms`, `1.24 s`, `3 min 5 s`, `2 h 4 min`."""
    if seconds is None:
        return NOT_KNOWN
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def format_count(count: int | None, noun: str) -> str:
    """As `1 step`, `2 steps`."""
    return f"{NOT_KNOWN} {noun}s" if count is None else f"{count} {noun}{'' if count == 1 else 's'}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of GitHub's markdown; cells keep to their line, and show None as not known."""
    lines = [_row(header), _row(["---"] * len(header)), *(_row(row) for row in rows)]
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    """`text` as markdown code, where it may hold anything."""
    flat = " ".join(text.split()).replace("`", "'")
    return f"`{flat}`" if flat else NOT_KNOWN


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(value: object) -> str:
    text = NOT_KNOWN if value is None else " ".join(str(value).split())
    if len(text) > _MAX_CELL_CHARACTERS:
        text = text[: _MAX_CELL_CHARACTERS - 3] + "..."
    return text.replace("|", "\\|").replace("<", "&lt;")
