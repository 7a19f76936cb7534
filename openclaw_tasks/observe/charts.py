"""What a line chart needs: scales, ticks, smoothing, and thinning to what a screen can show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear map of [low, high] onto pixels [start, stop]."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """Pixel of `value`."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)


def ticks(low: float, high: float, count: int, *, whole: bool = False) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) within [low, high], low < high."""
    rough = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    distance = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    if whole:
        distance = max(1.0, distance)
    first, last = math.ceil(low / distance - 1e-9), math.floor(high / distance + 1e-9)
    return [index * distance for index in range(first, last + 1)]


def tick_label(value: float, distance: float) -> str:
    """`value` with as many decimals as ticks `distance` apart need."""
    if abs(value) >= 1e6 or (value and abs(value) < 1e-4):
        return f"{value:.3g}"
    decimals = max(0, -math.floor(math.log10(distance) + 1e-9))
    return f"{value:,.{decimals}f}"


def smooth(points: Sequence[Point], span: float) -> list[Point]:
    """Moving average over about `span` points: exponential, there and back, so that it does not lag."""
    there = _average([y for _, y in points], span)
    back = _average(there[::-1], span)[::-1]
    return [(x, y) for (x, _), y in zip(points, back, strict=True)]


def _average(values: Sequence[float], span: float) -> list[float]:
    """Exponential moving average, unbiased at the start."""
    keep = 1 - 2 / (span + 1)
    total = weight = 0.0
    averaged = []
    for value in values:
        total = keep * total + (1 - keep) * value
        weight = keep * weight + (1 - keep)
        averaged.append(total / weight)
    return averaged


def thin(points: Sequence[Point], num_buckets: int) -> list[Point]:
    """At most two points a bucket, the lowest and the highest, in order; all of them when they are few."""
    if len(points) <= 2 * num_buckets:
        return list(points)
    kept: list[Point] = []
    for bucket in range(num_buckets):
        part = points[bucket * len(points) // num_buckets : (bucket + 1) * len(points) // num_buckets]
        lowest, highest = min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])
        kept += sorted({lowest, highest})
    return kept


def split_at_gaps(points: Sequence[tuple[float, float | None]]) -> list[list[Point]]:
    """Runs of points that have a value."""
    runs: list[list[Point]] = [[]]
    for x, y in points:
        if y is not None:
            runs[-1].append((x, y))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def lanes(spans: Sequence[Point], num_lanes: int) -> list[int | None]:
    """For each [start, stop] span, left to right, the first lane where it overlaps none before it; None if full."""
    ends = [-math.inf] * num_lanes
    chosen: list[int | None] = []
    for start, stop in spans:
        lane = next((lane for lane in range(num_lanes) if ends[lane] <= start), None)
        if lane is not None:
            ends[lane] = stop
        chosen.append(lane)
    return chosen
