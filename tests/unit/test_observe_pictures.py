"""Pictures and tables for people."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.observe.pictures import (
    loss_picture,
    picture_markdown,
    plan_markdown,
    recovery_timeline,
    storage_table,
)
from openclaw_tasks.observe.wording import format_bytes, format_seconds, markdown_table

SVG = "{http://www.w3.org/2000/svg}"


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, **fields}


def a_run(num_steps: int) -> list[dict[str, Any]]:
    return [
        event("attempt-started", planned_steps=num_steps, resumed_step=0, time="2026-08-01T12:00:00.000+00:00"),
        event("generation", number=1, from_step=1, ranks=2),
        *(event("step", step=step, loss=5 / step) for step in range(1, num_steps + 1)),
        event("fault", text="kill-rank:1@40", struck_at=1.0),
        event("recovery", step=min(40, num_steps), cause="rank 1 <killed>", recovered_seconds=0.112, steps_lost=0),
        event("generation", number=2, from_step=41, ranks=1),
        event("decision", step=50, decision="skip"),
    ]


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def points(svg: str, name: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return [
        point
        for line in root.iter(f"{SVG}polyline")
        if line.get("class") == name
        for point in line.get("points", "").split()
    ]


def test_the_picture_has_axes_losses_and_marks() -> None:
    svg = loss_picture(a_run(120), run="a <run>")
    shown = texts(svg)
    for label in ("Loss of a <run>", "step", "mean loss per item", "ranks", "0", "120", "2", "1"):
        assert label in shown
    assert "rank 1 <killed>, 112 ms" in shown
    assert "step 120 of 120  ·  1 recovery, 0 steps lost  ·  1 step skipped" in shown
    assert len(points(svg, "line")) == 120


def test_the_picture_stands_alone_and_is_readable_in_light_and_dark() -> None:
    svg = loss_picture(a_run(60), run="r")
    assert "href" not in svg
    assert "url(" not in svg
    assert "prefers-color-scheme: dark" in svg
    for theme in ("light", "dark"):
        fixed = loss_picture(a_run(60), run="r", theme=theme)
        assert "prefers-color-scheme" not in fixed
        back = {"light": "#ffffff", "dark": "#14181f"}[theme]
        assert f".back {{ fill: {back}" in fixed
    assert "{" not in ElementTree.fromstring(svg).findtext(f"{SVG}title", "")


@pytest.mark.parametrize(
    "events",
    [
        [],
        [event("attempt-started", planned_steps=5, resumed_step=0)],
        [event("step", step=1, loss=None)],
        [event("step", step=1, loss=2.0)],
        [event("step", step=1, loss=0.0), event("step", step=2, loss=0.0)],
        [event("step", step=1, loss=-1e30), event("step", step=2, loss=1e30)],
        [event("step", step=10**9, loss=1e-12), event("recovery", step=10**9)],
        [event("step", step=step, loss=None if step % 3 else 1.0) for step in range(1, 50)],
        [event("step", step=3, loss=1.0), event("generation", from_step=9, ranks=4), event("recovery", step=8)],
        [event("generation", from_step="x", ranks=None), event("step", step="y", loss=1.0)],
    ],
)
def test_odd_runs_have_a_picture_too(events: list[dict[str, Any]]) -> None:
    svg = loss_picture(events, run="r")
    ElementTree.fromstring(svg)
    assert "nan" not in svg
    assert "None" not in svg


def test_a_long_run_is_thinned_and_keeps_its_extremes() -> None:
    events = [event("step", step=step, loss=100.0 if step == 12_345 else 1.0) for step in range(1, 30_001)]
    svg = loss_picture(events, run="r")
    assert len(svg) < 40_000
    heights = {float(point.split(",")[1]) for point in points(svg, "raw")}
    assert max(heights) - min(heights) > 150


def test_labels_of_many_recoveries_do_not_overlap() -> None:
    steps = [event("step", step=step, loss=1.0) for step in range(1, 101)]
    recoveries = [event("recovery", step=step, cause="rank 1 killed", recovered_seconds=0.1) for step in range(40, 60)]
    root = ElementTree.fromstring(loss_picture([*steps, *recoveries], run="r"))
    labels = [element for element in root.iter(f"{SVG}text") if element.get("class") == "mark-text"]
    heights = [element.get("y") for element in labels]
    assert 1 <= len(labels) <= 3
    assert len(set(heights)) == len(labels)
    assert len([line for line in root.iter(f"{SVG}line") if line.get("class") == "mark"]) == 20


def test_a_picture_travels_inside_markdown() -> None:
    svg = loss_picture(a_run(10), run="r")
    text = picture_markdown(svg, alt="Loss [of] r")
    assert base64.b64decode(text.split("base64,")[1].rstrip(")\n")).decode() == svg
    assert text.startswith("![Loss [of) r](data:image/svg+xml;base64,")


def test_the_plan_tells_steps_shards_and_what_may_be_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENCLAW_HOME", str(tmp_path))
    job = TrainJob.load("demo")
    node = {"host": "h", "device": "cpu", "cores": 2, "memory_bytes": 8e9, "num_parameters": 850_000}
    node |= {"full_checkpoint_bytes": 10_200_000, "record_bytes": 1_700_000, "samples": 90_000}
    plan = plan_markdown(job, {"a": node, "b|": {}}, resumed_step=50, boundaries=[60, 80, 100, 120])
    assert "| 70 steps from step 50 on, in segments of 20 |" in plan
    assert "| at step 60, 80, 100, 120; there a base is stored and proven |" in plan
    assert "3 data and 2 parity stripes on 5 targets; any 2 may be lost" in plan
    assert "850,000 parameters; 10.2 MB at first, a step's record up to 1.7 MB" in plan
    assert "| a | h | cpu | 2 | 8 GB |" in plan
    assert "| b\\| | – | – | – | – |" in plan
    assert "at step 1, 2, 3, 4, 5, 6, ..., 100;" in plan_markdown(job, {}, boundaries=range(1, 101))


def test_the_timeline_tells_what_happened_in_order() -> None:
    events = [
        *a_run(60),
        event("storage", target=1, problem="gone | lost"),
        event("storage", target=None, problem="too few targets answer"),
        event("waiting", reason="storage is behind"),
        event("waiting", reason=None),
        event("failed", error="s3://me:hunter2@x refused"),
        event("attempt-started", resumed_step=56),
        event("finished", final_step=60),
    ]
    timeline = recovery_timeline(events)
    rows = [line.split(" | ")[3] for line in timeline.splitlines()[4:]]
    assert rows == [
        "started",
        "generation 1",
        "fault struck",
        "**recovered**",
        "generation 2",
        "target 1",
        "storage",
        "waits",
        "goes on",
        "**failed**",
        "resumed",
        "finished",
    ]
    assert "gone \\| lost" in timeline
    assert "hunter2" not in timeline
    assert "&lt;killed>" in timeline
    assert "Nothing yet" in recovery_timeline([])


def test_the_storage_table_tells_health_and_sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENCLAW_HOME", str(tmp_path))
    job = TrainJob.load("demo")
    events = [
        event("storage", target=0, problem="was away"),
        event("storage", target=None, problem="too few targets"),
        event("attempt-started", resumed_step=0),
        event("storage", target=1, problem="target.json is gone"),
        event("storage", target=2, problem="away"),
        event("storage", target=2, problem=None),
        event("durable", step=8, log_bytes=1500, degraded=True),
        event("base", step=20, bytes=4500),
        event("finished", final_step=20, full_checkpoint_bytes=3000),
    ]
    table = storage_table(job, events, stripes={0: 7})
    assert f"| 0 | `file://{tmp_path}/runs/demo/t0` | well | 7 |" in table
    assert "**target.json is gone** | – |" in table
    assert "1 target not well; 1 more may be lost." in table
    assert "too few targets" not in table
    assert "**too few targets**" in storage_table(
        job, [*events, event("storage", target=None, problem="too few targets")]
    )
    assert "| Degraded groups | 1 |" in table
    assert "| Less than a full checkpoint each step | 90.0% |" in table
    assert "more than the redundancy" in storage_table(
        job, [event("storage", target=number, problem="gone") for number in range(3)]
    )
    assert "| Degraded groups | – |" in storage_table(job, [])


def test_numbers_read_well() -> None:
    assert [format_bytes(size) for size in (0, 999, 1000, 12_345_678, 10**12, None)] == [
        "0 B",
        "999 B",
        "1 KB",
        "12.3 MB",
        "1 TB",
        "–",
    ]
    assert [format_seconds(seconds) for seconds in (0.0352, 1.236, 59.99, 185, 7440, None)] == [
        "35.2 ms",
        "1.24 s",
        "1 min 0 s",
        "3 min 5 s",
        "2 h 4 min",
        "–",
    ]
    assert markdown_table(["a"], [["x\ny|z"], [None]]) == "| a |\n| --- |\n| x y\\|z |\n| – |\n"
