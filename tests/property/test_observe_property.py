"""Whatever the events are, reading them back, folding and drawing them holds."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_tasks.observe.charts import lanes, ticks
from openclaw_tasks.observe.events import EventLog, Kind, plain, read_events
from openclaw_tasks.observe.pictures import loss_picture
from openclaw_tasks.observe.report import Report, fold_report
from openclaw_tasks.observe.tables import recovery_timeline

KINDS = get_args(Kind)
NAMES = [
    "step", "loss", "from_step", "ranks", "planned_steps", "resumed_step", "recipe", "log_bytes", "degraded", "group",
    "bytes", "base", "ok", "name", "seconds", "final_step", "applied", "weights_digest", "cause", "steps_lost",
    "recovered_seconds", "decision", "target", "problem", "text", "number", "time", "reason", "full_checkpoint_bytes",
]  # fmt: skip

values = (
    st.none() | st.booleans() | st.integers(0, 50) | st.integers() | st.floats() | st.text(max_size=8)
    | st.lists(st.integers(), max_size=2) | st.just(10**400)
)  # fmt: skip
wild_events = st.lists(
    st.builds(
        lambda kind, fields: {**fields, "kind": kind},
        st.sampled_from(KINDS) | values,
        st.dictionaries(st.sampled_from(NAMES), values, max_size=8),
    ),
    max_size=12,
)


@given(events=wild_events)
@settings(deadline=None, max_examples=200)
def test_any_events_fold_to_a_report_and_a_picture(events: list[dict[str, Any]]) -> None:
    report = fold_report(events, run="r")
    assert Report.from_json(report.to_json()) == report
    ElementTree.fromstring(loss_picture(events, run="r"))
    recovery_timeline(events)


@given(value=st.recursive(values, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8))
@settings(deadline=None)
def test_plain_values_are_json(value: Any) -> None:
    json.dumps(plain(value), allow_nan=False, default=lambda odd: 1 / 0)


@given(fields=st.lists(st.dictionaries(st.sampled_from(NAMES[:8]), values, max_size=4), min_size=1, max_size=6))
@settings(deadline=None, max_examples=50)
def test_what_is_emitted_is_read(fields: list[dict[str, Any]], tmp_path_factory: Any) -> None:
    path = Path(tmp_path_factory.mktemp("events")) / "events.jsonl"
    log = EventLog("r", path=path, attempt=1)
    emitted = [log.emit("step", **given_fields) for given_fields in fields]
    log.close()
    assert log.num_unwritten == 0
    assert [json.dumps(event) for event in read_events("r", path=path)] == [json.dumps(event) for event in emitted]


@given(low=st.floats(-1e12, 1e12), size=st.floats(1e-6, 1e12), count=st.integers(1, 12))
@settings(deadline=None)
def test_ticks_lie_within_and_are_few(low: float, size: float, count: int) -> None:
    high = low + size
    if high <= low:
        return
    chosen = ticks(low, high, count)
    assert len(chosen) <= 2 * count + 2
    slack = size * 1e-3 + abs(low) * 1e-9
    assert all(low - slack <= value <= high + slack for value in chosen)


@given(spans=st.lists(st.tuples(st.floats(0, 100), st.floats(0, 30)), max_size=20), num_lanes=st.integers(1, 4))
@settings(deadline=None)
def test_spans_in_a_lane_do_not_overlap(spans: list[tuple[float, float]], num_lanes: int) -> None:
    placed = sorted((start, start + width) for start, width in spans)
    chosen = lanes(placed, num_lanes)
    for lane in range(num_lanes):
        mine = [span for span, at in zip(placed, chosen, strict=True) if at == lane]
        assert all(left[1] <= right[0] for left, right in pairwise(mine))
