"""Leaving a rule of the protocol out, without a switch in the product: operations dropped, answers changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from openclaw_tasks.checkpoint import paths
from openclaw_tasks.checkpoint.operations import (
    Answer,
    Create,
    List,
    Operation,
    Replace,
    Steps,
)
from openclaw_tasks.errors import (
    StoreTimeoutError,
    TargetLostError,
)
from simulation.world import RUN

RULES = (
    "fence check",
    "claim before read",
    "repair",
    "torn tail",
    "parts before manifest",
    "pins before deletes",
    "claims before deletes",
    "degraded mark",
    "announced floor",
)
T = TypeVar("T")
Rewrite = Callable[[Operation], Operation | None]
"""What is done in place of an operation; None: nothing, and it is answered by None."""


def rewritten(
    steps: Steps[T], rewrite: Rewrite, answer: Callable[[Operation, Answer], Answer] = lambda _, a: a
) -> Steps[T]:
    """`steps`, with operations left out and answers changed on the way."""
    try:
        batch = next(steps)
        while True:
            passed = [operation for operation in batch if rewrite(operation) is not None]
            answers = iter((yield passed) if passed else ())
            seen = [answer(operation, next(answers)) if rewrite(operation) is not None else None for operation in batch]
            batch = steps.send(seen)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def blind_to_claims(steps: Steps[T], epoch: int) -> Steps[T]:
    def filtered(operation: Operation, answer: Answer) -> Answer:
        if isinstance(operation, List) and isinstance(answer, list):
            return [key for key in answer if (paths.parse_claim_key(RUN, key) or 0) <= epoch]
        return answer

    return rewritten(steps, lambda operation: operation, filtered)


def blind_to_pins(steps: Steps[T]) -> Steps[T]:
    def filtered(operation: Operation, answer: Answer) -> Answer:
        if isinstance(operation, List) and isinstance(answer, list):
            return [key for key in answer if paths.parse_pin_key(RUN, key) is None]
        return answer

    return rewritten(steps, lambda operation: operation, filtered)


def noting_trouble(steps: Steps[T], troubled: set[int]) -> Steps[T]:
    """Adds the targets that did not answer properly."""

    def note(operation: Operation, answer: Answer) -> Answer:
        if isinstance(answer, StoreTimeoutError | TargetLostError):
            troubled.add(getattr(operation, "target", -1))
        return answer

    return rewritten(steps, lambda operation: operation, note)


def without_writes(steps: Steps[T], *marks: str) -> Steps[T]:
    """Creates and replaces of keys that contain one of `marks` do nothing."""

    def rewrite(operation: Operation) -> Operation | None:
        if isinstance(operation, Create | Replace) and any(mark in operation.key for mark in marks):
            return None
        return operation

    return rewritten(steps, rewrite)
