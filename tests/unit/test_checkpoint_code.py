"""The erasure code's quorums."""

from __future__ import annotations

import pytest

from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.errors import JobError

CODES = [Code(n, m) for n in range(1, 13) for m in range((n + 1) // 2)]


@pytest.mark.parametrize(
    ("code", "k", "write", "group", "fence", "read"),
    [
        (Code(5, 2), 3, 3, 3, 3, 3),
        (Code(3, 1), 2, 2, 2, 2, 2),
        (Code(1, 0), 1, 1, 1, 1, 1),
        (Code(6, 2), 4, 4, 4, 3, 4),
        (Code(11, 3), 8, 6, 8, 6, 6),
    ],
)
def test_quorums_of_the_usual_codes(code: Code, k: int, write: int, group: int, fence: int, read: int) -> None:
    assert (code.k, code.write_quorum, code.group_quorum) == (k, write, group)
    assert (code.fence_quorum, code.read_quorum) == (fence, read)


@pytest.mark.parametrize("code", CODES, ids=str)
def test_quorums_meet_and_live_with_m_targets_away(code: Code) -> None:
    assert 2 * code.write_quorum > code.n
    assert code.write_quorum > code.m
    assert code.write_quorum + code.fence_quorum > code.n
    assert code.write_quorum + code.read_quorum > code.n
    assert max(code.write_quorum, code.group_quorum, code.fence_quorum, code.read_quorum) <= code.n - code.m


@pytest.mark.parametrize(("n", "m"), [(4, 2), (2, 1), (1, 1), (5, -1), (0, 0), (257, 2)])
def test_a_code_that_no_quorum_outlives_is_refused_with_both_values(n: int, m: int) -> None:
    with pytest.raises(JobError, match=rf"store\.(targets|redundancy).*{n}"):
        Code(n, m)
