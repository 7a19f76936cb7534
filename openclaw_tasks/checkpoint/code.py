"""The erasure code of a run, and the quorums that follow from it."""

from __future__ import annotations

from dataclasses import dataclass

from openclaw_tasks.errors import JobError

MAX_STRIPES = 256  # zfec works in GF(2^8)


@dataclass(frozen=True, slots=True)
class Code:
    """`n` stripes, one a target, of which any `n - m` rebuild the payload.

    JobError when a quorum could not live with `m` targets away.
    """

    n: int
    m: int

    def __post_init__(self) -> None:
        if not 1 <= self.n <= MAX_STRIPES:
            raise JobError(f"store.targets has {self.n} entries; it must have 1 to {MAX_STRIPES}")
        if not 0 <= self.m < self.n - self.m:
            raise JobError(
                f"store.redundancy={self.m} must be 0 or more and below half of the {self.n} store.targets, "
                "so that a quorum lives when that many are away"
            )

    @property
    def k(self) -> int:
        """Data stripes: as many as must be found to rebuild."""
        return self.n - self.m

    @property
    def write_quorum(self) -> int:
        """W: acknowledgements that make a claim or a start hold. Two such sets meet, and outlive m losses."""
        return max(self.m + 1, self.n // 2 + 1)

    @property
    def group_quorum(self) -> int:
        """max(k, W): acknowledgements that make a group or a base object count."""
        return max(self.k, self.write_quorum)

    @property
    def fence_quorum(self) -> int:
        """n - W + 1: targets to look at, so that no claim held by W of them stays unseen."""
        return self.n - self.write_quorum + 1

    @property
    def read_quorum(self) -> int:
        """max(W, n - W + 1): targets that must answer before what they show is taken as the run's past."""
        return max(self.write_quorum, self.fence_quorum)
