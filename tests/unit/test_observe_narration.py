"""Events as lines: what happened, and what it means for whoever reads it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from openclaw_tasks.observe.narration import narrate


def told(kind: str, **fields: Any) -> str:
    line = narrate({"kind": kind, "time": "", "mono": 0.0, "attempt": 1, **fields})
    assert line is not None
    return line[1]


@pytest.mark.parametrize(
    ("spare", "means"),
    [
        (1, "the others hold all that is needed; 1 more may be lost"),
        (0, "the others hold all that is needed; no other may be lost until it is back"),
    ],
)
def test_a_lost_target_is_told_with_how_many_more_may_be(spare: int, means: str) -> None:
    assert told("storage", target=3, problem="gone", spare=spare) == f"target 3 is gone (gone); {means}"


def test_an_end_is_told_with_what_is_in_storage() -> None:
    assert told("failed", error="interrupted", durable_step=7) == "ended: interrupted; all up to step 7 is in storage"
    assert told("failed", error="x", durable_step=0) == "ended: x"


def test_bases_are_for_the_log_and_proofs_for_the_terminal() -> None:
    base = narrate({"kind": "base", "step": 4, "bytes": 10, "degraded": False})
    proof = narrate({"kind": "verified", "step": 4, "ok": True, "reason": None})
    assert base is not None
    assert proof is not None
    assert (base[0], proof[0]) == (logging.DEBUG, logging.INFO)
