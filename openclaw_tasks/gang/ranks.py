"""What the supervisor and its ranks say to each other, as values: formations, agreement, errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_tasks import errors
from openclaw_tasks.errors import DigestMismatchError, OpenClawError, RecipeStepError, RunError
from openclaw_tasks.recovery.machine import Formation


def formation_message(
    formation: Formation,
    member: int,
    *,
    newcomer: bool,
    restore_step: int | None,
    kill_at: float | None,
    strikes: Mapping[str, str],
    holds: Sequence[int],
    stop: bool,
) -> dict[str, Any]:
    """A formation as `training.orders.Formation` reads it, for one of its members."""
    return {
        "type": "formation",
        "generation": formation.generation,
        "when": formation.when,
        "newcomer": newcomer,
        "rank": formation.rank_of(member),
        "members": [other.number for other in formation.members],
        "addresses": [list(other.address or ()) for other in formation.members],
        "runs": [list(run) for run in formation.runs],
        "open_runs": [list(run) for run in formation.open_runs],
        "restore_step": restore_step,
        "kill_at": kill_at,
        "strikes": dict(strikes),
        "holds": list(holds),
        "stop": stop,
    }


class Agreement:
    """What must be the same on every rank: data, recipe source, arithmetic, layout, and each boundary's state."""

    def __init__(self) -> None:
        self._first: tuple[str, dict[str, Any]] | None = None
        self._digests: dict[int, tuple[str, str]] = {}

    def check(self, rank: str, ready: Mapping[str, Any]) -> RunError | None:
        """An error naming both ranks and what differs, if this one does not agree with the first."""
        facts = {**ready["fingerprints"], "layout": ready["layout"]}
        if self._first is None:
            self._first = rank, facts
            return None
        first_rank, first = self._first
        different = [name for name in facts if facts[name] != first.get(name)]
        if not different:
            return None
        return RunError(
            f"{rank} and {first_rank} differ in {' and '.join(different)}: every rank must see the same data and "
            "recipe source and compute with the same arithmetic; make the machines alike, or leave one out"
        )

    def check_digests(self, rank: str, boundary: Mapping[str, Any]) -> DigestMismatchError | None:
        """An error if this rank's state after a boundary is not the others'."""
        step, digest = boundary["step"], boundary["state_digest"]
        first_rank, first = self._digests.setdefault(step, (rank, digest))
        if first == digest:
            return None
        return DigestMismatchError(
            f"step {step}: {rank} has state {digest[:12]}, {first_rank} has {first[:12]}: their arithmetic differs or "
            "one's memory is damaged; nothing after the last verified base is to be trusted"
        )


def error_of(rank: str, number: int | None, message: Mapping[str, Any]) -> OpenClawError:
    """The error that a rank reported, as the run's own; `rank` says in words which one it is."""
    known = getattr(errors, message["error"], None)
    text = str(message["message"])
    if message["is_ours"] and isinstance(known, type) and known is not RecipeStepError:
        assert issubclass(known, OpenClawError)
        error: OpenClawError = known.__new__(known)
        Exception.__init__(error, f"{rank}: {text}")
        return error
    summary = f"{rank}, step {message['step']}: {message['error']}: {text}".splitlines()[0]
    return RecipeStepError(summary, step=int(message["step"]), rank=number, traceback_text=str(message["traceback"]))
