"""The storage protocol under random schedules: short form of `python tests/simulation/commit.py`."""

from __future__ import annotations

from collections import Counter

import pytest
from simulation.commit import CODES, run_schedule
from simulation.rules import RULES

from openclaw_tasks.checkpoint.code import Code

SCHEDULES = 120
QUICKEST = {
    "fence check": Code(3, 1),
    "claim before read": Code(4, 1),
    "repair": Code(3, 1),
    "torn tail": Code(4, 1),
    "parts before manifest": Code(5, 2),
    "pins before deletes": Code(1, 0),
    "claims before deletes": Code(1, 0),
    "degraded mark": Code(4, 1),
    "announced floor": Code(1, 0),
}
"""Where leaving the rule out shows soonest."""


@pytest.mark.parametrize("code", CODES, ids=lambda code: f"n={code.n},m={code.m}")
def test_every_promise_holds_in_every_schedule(code: Code) -> None:
    """Crashes, zombies, lost answers, late effects, outages, lost and rotten targets."""
    total: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        result = run_schedule(seed, code)
        assert result.violation is None, f"seed {seed}: {result.violation}"
        total += result.counts
    # The schedules are worth something only if all of this happens in them.
    assert min(total[kind] for kind in ("groups", "bases", "starts", "deletes", "readings")) > SCHEDULES // 2, total


@pytest.mark.parametrize("rule", RULES)
def test_leaving_out_a_rule_is_caught(rule: str) -> None:
    for seed in range(1000):
        if run_schedule(seed, QUICKEST[rule], rule).violation is not None:
            return
    pytest.fail(f"no schedule shows that the protocol needs: {rule}")


def test_a_schedule_is_determined_by_its_seed() -> None:
    first, second = (run_schedule(7, Code(5, 2)) for _ in range(2))
    assert first == second
