"""Faults on the command line."""

from __future__ import annotations

import pytest

from openclaw_tasks.config.faults import Fault, parse_fault, parse_faults
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.errors import JobError


@pytest.fixture(name="job")
def _job() -> TrainJob:
    return TrainJob.parse({"run": "x", "recipe": "m:C", "steps": 60, "global_batch": 8})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill-rank:1@40", Fault("kill-rank", 1, 40)),
        ("stop-rank:0@1", Fault("stop-rank", 0, 1)),
        ("kill-agent:1@60", Fault("kill-agent", 1, 60)),
        ("delete-target:4@7", Fault("delete-target", 4, 7)),
        ("kill-flow@9", Fault("kill-flow", None, 9)),
    ],
)
def test_each_fault_parses_and_writes_itself_back(text: str, fault: Fault, job: TrainJob) -> None:
    assert parse_fault(text) == fault
    assert fault.text() == text
    fault.check(job)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "write kill-rank:RANK@STEP"),
        ("kill-rank", "write kill-rank:RANK@STEP"),
        ("kill-rank@4", "takes a number"),
        ("kill-flow:1@4", "takes no number"),
        ("kill-rnak:1@4", "did you mean 'kill-rank'?"),
        ("kill-rank:-1@4", "write"),
        ("kill-rank:1@0", "count from 1"),
        ("kill-rank:1@4\n", "write"),
        ("kill-rank:١@4", "write"),
        ("kill-rank:1@" + "9" * 5000, "write"),
    ],
)
def test_what_is_no_fault_is_refused_with_the_remedy(text: str, part: str) -> None:
    with pytest.raises(JobError) as caught:
        parse_fault(text)
    assert part in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("kill-rank:2@4", "cluster.workers has 2"),
        ("stop-rank:9@4", "cluster.workers has 2"),
        ("kill-agent:2@4", "cluster.workers has 2"),
        ("delete-target:5@4", "store.targets has 5"),
        ("kill-flow@61", "steps=60"),
    ],
)
def test_a_fault_that_the_job_has_no_place_for_is_refused(text: str, part: str, job: TrainJob) -> None:
    with pytest.raises(JobError) as caught:
        parse_faults(["kill-flow@1", text], job)
    assert part in str(caught.value)
