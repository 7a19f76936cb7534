"""Pictures of a run, for people: its loss, drawn here, and the tables of `openclaw_tasks.observe.tables`."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final, Literal, NamedTuple

from openclaw_tasks.observe.charts import Point, Scale, lanes, smooth, split_at_gaps, thin, tick_label, ticks
from openclaw_tasks.observe.events import Event
from openclaw_tasks.observe.report import number, text, whole
from openclaw_tasks.observe.tables import plan_markdown, recovery_timeline, storage_table
from openclaw_tasks.observe.wording import format_count, format_seconds

__all__ = ["Theme", "loss_picture", "picture_markdown", "plan_markdown", "recovery_timeline", "storage_table"]

Theme = Literal["auto", "light", "dark"]

_WIDTH: Final = 880
_HEIGHT: Final = 428
_LEFT: Final = 68
_RIGHT: Final = 806
_LANES_TOP: Final = 78
_LANE_HEIGHT: Final = 17
_NUM_LANES: Final = 3
_BOTTOM: Final = 336
_RANKS_TOP: Final = 384
_RANKS_BOTTOM: Final = 404
_CHARACTER_WIDTH: Final = 6.4

_LIGHT: Final = {
    "back": "#ffffff",
    "ink": "#1c2430",
    "soft": "#5b6675",
    "grid": "#e4e8ee",
    "line": "#1f6feb",
    "mark": "#b93815",
    "band": "#dbe7fb",
    "band-ink": "#1b3a6b",
}
_DARK: Final = {
    "back": "#14181f",
    "ink": "#e8ecf2",
    "soft": "#9aa7b8",
    "grid": "#28303b",
    "line": "#6aa6ff",
    "mark": "#ff9b73",
    "band": "#22344f",
    "band-ink": "#cfe0fb",
}
_STYLE: Final = (
    ("text", "font-family: system-ui, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif; font-size: 12px", ""),
    (".back", "stroke-width: 1", "fill: {back}; stroke: {grid}"),
    (".title", "font-size: 17px; font-weight: 600", "fill: {ink}"),
    (".ink", "", "fill: {ink}"),
    (".soft", "", "fill: {soft}"),
    (
        ".value",
        "font-weight: 600; paint-order: stroke; stroke-width: 4; stroke-linejoin: round",
        "fill: {line}; stroke: {back}",
    ),
    (".grid", "stroke-width: 1", "stroke: {grid}"),
    (".axis", "stroke-width: 1", "stroke: {soft}"),
    (".raw", "fill: none; stroke-width: 1; stroke-opacity: 0.5; stroke-linejoin: round", "stroke: {line}"),
    (".line", "fill: none; stroke-width: 2.25; stroke-linejoin: round; stroke-linecap: round", "stroke: {line}"),
    (".dot", "stroke-width: 2", "fill: {line}; stroke: {back}"),
    (".mark", "stroke-width: 1.25; stroke-dasharray: 3 3", "stroke: {mark}"),
    (".mark-dot", "stroke-width: 2", "fill: {mark}; stroke: {back}"),
    (
        ".mark-text",
        "font-size: 11.5px; paint-order: stroke; stroke-width: 4; stroke-linejoin: round",
        "fill: {mark}; stroke: {back}",
    ),
    (".skip", "fill: none; stroke-width: 1.75", "stroke: {mark}"),
    (".band", "stroke-width: 2", "fill: {band}; stroke: {back}"),
    (".band-text", "font-size: 11.5px", "fill: {band-ink}"),
)


class _Mark(NamedTuple):
    """Something that happened at a step, in few words and in full."""

    step: int
    short: str
    long: str


@dataclass(slots=True)
class _Story:
    """What the picture shows, gathered from events."""

    losses: dict[int, float | None] = field(default_factory=dict)
    marks: list[_Mark] = field(default_factory=list)
    skipped: set[int] = field(default_factory=set)
    ranks: list[tuple[int, int]] = field(default_factory=list)
    """First step, and how many computed from there."""
    planned_steps: int = 0
    num_recoveries: int = 0
    steps_lost: int = 0


def loss_picture(events: Iterable[Event], *, run: str, theme: Theme = "auto") -> str:
    """A self-contained SVG of the loss of `run` by step, from its events.

    Marks recoveries and resumed attempts with what they cost, skipped steps, and below, how many ranks ran.
    "auto" follows the reader's preference for light or dark; both have their own background.
    """
    story = _read(events)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img">',
        f"<title>Loss of {escape(run)}</title>",
        f"<style>{_style(theme)}</style>",
        f'<rect class="back" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" rx="8"/>',
        _text(24, 34, f"Loss of {_cut(run, 60)}", "title"),
        _text(24, 54, _subtitle(story), "soft"),
    ]
    if any(loss is not None for loss in story.losses.values()):
        parts += _plot(story)
    else:
        parts.append(_text(_WIDTH / 2, _HEIGHT / 2, "No step is done yet", "soft", anchor="middle"))
    return "\n".join([*parts, "</svg>\n"])


def picture_markdown(svg: str, *, alt: str) -> str:
    """An image of markdown that holds `svg` itself."""
    encoded = base64.b64encode(svg.encode()).decode("ascii")
    return f"![{alt.replace(']', ')')}](data:image/svg+xml;base64,{encoded})\n"


def _read(events: Iterable[Event]) -> _Story:
    story = _Story()
    for event in events:
        kind, step = event.get("kind"), whole(event, "step")
        if kind == "step" and step is not None:
            story.losses[step] = number(event, "loss")
        elif kind == "decision" and step is not None and event.get("decision") == "skip":
            story.skipped.add(step)
        elif kind == "recovery" and step is not None:
            story.num_recoveries += 1
            story.steps_lost += whole(event, "steps_lost") or 0
            cause = text(event, "cause") or "a loss"
            took = format_seconds(number(event, "recovered_seconds"))
            full = f"step {step}: {cause}, recovered in {took}"
            story.marks.append(_Mark(step, f"{_cut(cause, 34)}, {took}", full))
        elif kind == "attempt-started":
            story.planned_steps = whole(event, "planned_steps") or story.planned_steps
            resumed = whole(event, "resumed_step")
            if resumed:
                story.marks.append(_Mark(resumed, "resumed", f"resumed after step {resumed}"))
        elif kind == "generation":
            from_step, ranks = whole(event, "from_step"), whole(event, "ranks")
            if from_step is not None and ranks is not None:
                story.ranks = [item for item in story.ranks if item[0] < from_step] + [(from_step, ranks)]
    return story


def _subtitle(story: _Story) -> str:
    done = max(story.losses, default=0)
    parts = [f"step {done} of {story.planned_steps}" if story.planned_steps else f"step {done}"]
    if story.num_recoveries:
        plural = "y" if story.num_recoveries == 1 else "ies"
        parts.append(f"{story.num_recoveries} recover{plural}, {format_count(story.steps_lost, 'step')} lost")
    if story.skipped:
        parts.append(f"{format_count(len(story.skipped), 'step')} skipped")
    return "  ·  ".join(parts)


def _plot(story: _Story) -> list[str]:
    steps = sorted(story.losses)
    runs = split_at_gaps([(step, story.losses[step]) for step in steps])
    values = [y for run in runs for _, y in run]
    pad = 0.06 * (max(values) - min(values)) or max(abs(values[0]), 1.0) * 0.1
    low, high = min(values) - pad, max(values) + pad
    if 0 <= min(values) < 0.15 * max(values):
        low = 0.0
    last = max(story.planned_steps, steps[-1], 1)
    x = Scale(0, last, _LEFT, _RIGHT)
    marks = _place(story.marks, x)
    num_lanes = max((_NUM_LANES if lane is None else lane + 1 for _, lane, _ in marks), default=0)
    top = _LANES_TOP + num_lanes * _LANE_HEIGHT + 8
    y = Scale(low, high, _BOTTOM, top)
    return [
        *_axes(x, y),
        *_ranks(story.ranks, steps[-1], x),
        *_skips(story.skipped, x),
        *_marks(marks, x, top),
        *_lines(runs, x, y),
        *_mark_dots(marks, story.losses, x, y),
    ]


def _axes(x: Scale, y: Scale) -> list[str]:
    parts = []
    y_ticks = ticks(y.low, y.high, 6)
    y_distance = y_ticks[1] - y_ticks[0] if len(y_ticks) > 1 else 1.0
    for value in y_ticks:
        parts.append(_line(_LEFT, y(value), _RIGHT, y(value), "grid"))
        parts.append(_text(_LEFT - 10, y(value) + 4, tick_label(value, y_distance), "soft", anchor="end"))
    parts.append(_line(_LEFT, _BOTTOM, _RIGHT, _BOTTOM, "axis"))
    for value in ticks(x.low, x.high, 8, whole=True):
        parts.append(_line(x(value), _BOTTOM, x(value), _BOTTOM + 5, "axis"))
        parts.append(_text(x(value), _BOTTOM + 20, tick_label(value, 1.0), "soft", anchor="middle"))
    parts.append(_text((_LEFT + _RIGHT) / 2, _BOTTOM + 37, "step", "ink", anchor="middle"))
    middle = (y.start + y.stop) / 2
    parts.append(
        f'<text class="ink" text-anchor="middle" transform="translate(20 {middle:.1f}) rotate(-90)">'
        "mean loss per item</text>"
    )
    return parts


def _lines(runs: Sequence[Sequence[Point]], x: Scale, y: Scale) -> list[str]:
    num_points = sum(map(len, runs))
    parts = []
    is_smoothed = num_points > 40
    for run in runs:
        if is_smoothed:
            parts.append(_path(thin(run, 400), x, y, "raw"))
        line = smooth(run, max(5.0, num_points / 25)) if is_smoothed else run
        parts.append(_path(thin(line, 400), x, y, "line"))
    last_step, last_loss = runs[-1][-1]
    parts.append(f'<circle class="dot" cx="{x(last_step):.1f}" cy="{y(last_loss):.1f}" r="4.5"/>')
    parts.append(_text(x(last_step) + 10, y(last_loss) + 4, f"{last_loss:.4g}", "value"))
    return parts


_Placed = tuple[_Mark, int | None, bool]


def _place(marks: Iterable[_Mark], x: Scale) -> list[_Placed]:
    """Each mark, left to right, with the lane its text has room in (None: in none), and whether it is left of it."""
    shown = sorted(mark for mark in marks if x.low <= mark.step <= x.high)
    spans, on_left = [], []
    for mark in shown:
        at, width = x(mark.step), len(mark.short) * _CHARACTER_WIDTH + 12
        on_left.append(at + width > _WIDTH - 16)
        spans.append((at - width, at) if on_left[-1] else (at, at + width))
    return list(zip(shown, lanes(spans, _NUM_LANES), on_left, strict=True))


def _marks(marks: Iterable[_Placed], x: Scale, top: float) -> list[str]:
    lines, texts = [], []
    for mark, lane, on_left in marks:
        at = x(mark.step)
        line_top = top - 4 if lane is None else _LANES_TOP + lane * _LANE_HEIGHT + 4
        lines.append(f"<g><title>{escape(mark.long)}</title>{_line(at, line_top, at, _BOTTOM, 'mark')}</g>")
        if lane is not None:
            moved, anchor = (-6, "end") if on_left else (6, "start")
            texts.append(_text(at + moved, line_top + 6, mark.short, "mark-text", anchor=anchor))
    return lines + texts


def _mark_dots(marks: Iterable[_Placed], losses: dict[int, float | None], x: Scale, y: Scale) -> list[str]:
    parts = []
    for mark, _, _ in marks:
        loss = losses.get(mark.step)
        height = _BOTTOM if loss is None else y(loss)
        parts.append(
            f"<g><title>{escape(mark.long)}</title>"
            f'<circle class="mark-dot" cx="{x(mark.step):.1f}" cy="{height:.1f}" r="4.5"/></g>'
        )
    return parts


def _skips(skipped: Iterable[int], x: Scale) -> list[str]:
    return [
        f'<g><title>step {step} skipped: its gradient was not finite</title><path class="skip" '
        f'd="M{x(step) - 3.5:.1f} {_BOTTOM - 10}l7 7m0 -7l-7 7"/></g>'
        for step in sorted(skipped)
        if x.low <= step <= x.high
    ]


def _ranks(ranks: Sequence[tuple[int, int]], last_step: int, x: Scale) -> list[str]:
    if not ranks:
        return []
    parts = [_text(_LEFT - 10, _RANKS_BOTTOM - 6, "ranks", "soft", anchor="end")]
    merged = [item for index, item in enumerate(ranks) if index == 0 or ranks[index - 1][1] != item[1]]
    ends = [start - 1 for start, _ in merged[1:]] + [last_step]
    for (start, count), end in zip(merged, ends, strict=True):
        left = min(x(start - 1), _RIGHT - 4)  # a step lies between the end of the one before it and its own
        width = max(x(min(end, x.high)) - left, 4.0)
        parts.append(
            f'<g><title>{format_count(count, "rank")} from step {start}</title><rect class="band" x="{left:.1f}" '
            f'y="{_RANKS_TOP}" width="{width:.1f}" height="{_RANKS_BOTTOM - _RANKS_TOP}" rx="4"/>'
        )
        if width > 16:
            parts.append(_text(left + width / 2, _RANKS_BOTTOM - 6, str(count), "band-text", anchor="middle"))
        parts.append("</g>")
    return parts


def _style(theme: Theme) -> str:
    def colored(colors: dict[str, str]) -> str:
        rules = []
        for selector, _, rule in _STYLE:
            named = re.sub(r"\{([a-z-]+)\}", lambda match: colors[match.group(1)], rule)
            if named:
                rules.append(f"{selector} {{ {named} }}")
        return " ".join(rules)

    fixed = " ".join(f"{selector} {{ {rule} }}" for selector, rule, _ in _STYLE if rule)
    if theme != "auto":
        return f"{fixed} {colored(_DARK if theme == 'dark' else _LIGHT)}"
    return f"{fixed} {colored(_LIGHT)} @media (prefers-color-scheme: dark) {{ {colored(_DARK)} }}"


def _text(x: float, y: float, content: str, name: str, *, anchor: str = "start") -> str:
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, name: str) -> str:
    return f'<line class="{name}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _path(points: Sequence[Point], x: Scale, y: Scale, name: str) -> str:
    drawn = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in points)
    if len(points) == 1:
        step, loss = points[0]
        return f'<circle class="dot" cx="{x(step):.1f}" cy="{y(loss):.1f}" r="2.5"/>'
    return f'<polyline class="{name}" points="{drawn}"/>'


def _cut(content: str, length: int) -> str:
    flat = " ".join(content.split())
    return flat if len(flat) <= length else f"{flat[: length - 1]}…"
