"""Names of objects in a target: one spelling each, numbers as numbers, foreign names ignored."""

from __future__ import annotations

import pytest

from openclaw_tasks.checkpoint import paths
from openclaw_tasks.checkpoint.paths import BaseName, GroupName, ObjectName, StartName
from openclaw_tasks.errors import JobError

GROUP = GroupName(epoch=3, writer="w1", sequence=5, first=33, last=40, attempt=1)
BASE = BaseName(step=25, epoch=3, writer="w1")


def test_names_are_written_as_the_design_says() -> None:
    assert paths.holder_key("lm") == "lm/holder.json"
    assert paths.claim_key("lm", 3) == "lm/claim/3"
    assert StartName(3, "w1").key("lm") == "lm/start/3-w1.json"
    assert GROUP.key("lm", 4) == "lm/log/3-w1/5.33-40.1/4"
    assert ObjectName(BASE, "params", 0).key("lm", 2) == "lm/base/25-3-w1/params.0/2"
    assert BASE.manifest_key("lm") == "lm/base/25-3-w1.json"
    assert BASE.mark_key("lm", "verified") == "lm/base/25-3-w1.verified.json"
    assert GROUP.degraded_key("lm") == "lm/log/3-w1/5.33-40.1/degraded.json"
    assert StartName(3, "w1").floor_key("lm", 25) == "lm/floor/3-w1.25.json"
    assert paths.pin_key("lm", "a1") == "lm/pin/a1.json"


def test_every_name_is_read_back() -> None:
    item = ObjectName(BASE, "params", 2)
    assert paths.parse_claim_key("lm", paths.claim_key("lm", 12)) == 12
    assert paths.parse_start_key("lm", StartName(3, "w1").key("lm")) == StartName(3, "w1")
    assert paths.parse_group_key("lm", GROUP.key("lm", 4)) == (GROUP, 4)
    assert paths.parse_object_key("lm", item.key("lm", 0)) == (item, 0)
    assert paths.parse_manifest_key("lm", BASE.manifest_key("lm")) == BASE
    assert paths.parse_mark_key("lm", BASE.mark_key("lm", "quarantined")) == (BASE, "quarantined")
    assert paths.parse_degraded_key("lm", GROUP.degraded_key("lm")) == GROUP
    assert paths.parse_floor_key("lm", StartName(3, "w1").floor_key("lm", 25)) == (StartName(3, "w1"), 25)
    assert paths.parse_pin_key("lm", paths.pin_key("lm", "a1")) == "a1"


@pytest.mark.parametrize(
    "key",
    [
        "",
        "lm",
        "lm/claim/",
        "lm/claim/03",
        "lm/claim/-3",
        "lm/claim/+3",
        "lm/claim/3.0",
        "lm/claim/³",
        "lm/claim/3/4",
        "lm/claim/3\n",
        "lm/claim/" + "9" * 19,
        "lm2/claim/3",
        "other/claim/3",
        "lm/start/0-w1.json",
        "lm/start/3-w1",
        "lm/start/3-w-1.json",
        "lm/start/3-w1.json~",
        "lm/log/3-w1/5.33-40/4",
        "lm/log/3-w1/5.40-33.1/4",
        "lm/log/3-w1/0.33-40.1/4",
        "lm/log/3-w1/5.0-40.1/4",
        "lm/log/3-w1/5.33-40.1/x",
        "lm/log/3-w1/5.33-40.1/4/4",
        "lm/base/25-3-w1/params/0",
        "lm/base/25-0-w1/params.0/0",
        "lm/base/25-3-w1.checked.json",
        "lm/pin/.json",
        "target.json",
    ],
)
def test_other_names_are_nobodys(key: str) -> None:
    parsers = (
        paths.parse_claim_key,
        paths.parse_start_key,
        paths.parse_group_key,
        paths.parse_object_key,
        paths.parse_manifest_key,
        paths.parse_mark_key,
        paths.parse_degraded_key,
        paths.parse_floor_key,
        paths.parse_pin_key,
    )
    assert [parse("lm", key) for parse in parsers] == [None] * len(parsers)


def test_numbers_order_as_integers_and_not_as_text() -> None:
    """Lightning-AI/litgpt#661: iter-960000 sorts after iter-1080000 as text."""
    keys = [paths.claim_key("lm", epoch) for epoch in (9, 10, 100)]
    epochs = [paths.parse_claim_key("lm", key) for key in sorted(keys)]
    assert max(epoch for epoch in epochs if epoch is not None) == 100
    assert BaseName(960_000, 9, "w") < BaseName(1_080_000, 1, "a")
    assert GroupName(2, "z", 9, 65, 72, 0) < GroupName(2, "z", 10, 73, 80, 0) < GroupName(10, "a", 1, 1, 8, 0)
    assert StartName(9, "z") < StartName(10, "a")


@pytest.mark.parametrize("run", ["a", "lm-2.1_x", "0", "x" * 100])
def test_a_run_may_be_named_so(run: str) -> None:
    assert paths.check_run(run) == run


@pytest.mark.parametrize("run", ["", ".hidden", "-x", "a/b", "ä", "a b", "x" * 101, "target.json", "a\n"])
def test_a_run_may_not_be_named_so(run: str) -> None:
    with pytest.raises(JobError, match="run="):
        paths.check_run(run)


def test_an_impossible_name_cannot_be_made() -> None:
    for make in (
        lambda: GroupName(0, "w", 1, 1, 8, 0),
        lambda: GroupName(1, "w-1", 1, 1, 8, 0),
        lambda: GroupName(1, "w", 1, 8, 1, 0),
        lambda: BaseName(-1, 1, "w"),
        lambda: ObjectName(BASE, "a/b", 0),
        lambda: paths.pin_key("lm", "../x"),
    ):
        with pytest.raises(AssertionError):
            make()
