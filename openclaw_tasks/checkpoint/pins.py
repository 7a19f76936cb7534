"""A reader's pin: what it asks retention to keep (generators)."""

from __future__ import annotations

from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.documents import Pin
from openclaw_tasks.checkpoint.history import History, read_history
from openclaw_tasks.checkpoint.operations import Delete, Replace, Steps, require
from openclaw_tasks.errors import StoreError


def put_pin(code: Code, pin: Pin) -> Steps[None]:
    """Put or renew the pin. NotDurableError when fewer than W targets have it."""
    answers = yield [Replace(target, pin.key, pin.to_bytes()) for target in range(code.n)]
    problems = {target: answer for target, answer in enumerate(answers) if isinstance(answer, StoreError)}
    require(f"run {pin.run!r}: {pin.key}", set(range(code.n)) - problems.keys(), code.write_quorum, problems)


def pin_history(code: Code, pin: Pin, *, deep_bytes: int) -> Steps[History]:
    """Put the pin, then read the history: everything from the floor it shows on stays until the pin goes."""
    yield from put_pin(code, pin)
    return (yield from read_history(pin.run, code.n, code, deep_bytes=deep_bytes))


def drop_pin(code: Code, pin: Pin) -> Steps[None]:
    """Remove the pin where targets answer; elsewhere it stays until retention sees that it does not move."""
    yield [Delete(target, pin.key) for target in range(code.n)]
