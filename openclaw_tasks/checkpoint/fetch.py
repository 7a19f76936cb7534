"""Reading one erasure-coded payload back, from as few stripes as are whole (generator)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.operations import Steps, read_all
from openclaw_tasks.checkpoint.paths import StripedName
from openclaw_tasks.checkpoint.stripes import Rebuilt, rebuild
from openclaw_tasks.errors import DamagedError, DataLossError, NotDurableError, NotFoundError, StoreError


@dataclass(frozen=True, slots=True)
class Fetched:
    """A payload whose digest has been checked; `bad` as in Rebuilt, by target."""

    rebuilt: Rebuilt
    silent: frozenset[int]
    """Targets that were asked and did not answer."""


def fetch(code: Code, run: str, name: StripedName, digest: str, order: Sequence[int]) -> Steps[Fetched]:
    """The payload with SHA-256 `digest` that is stored under `name`.

    order: targets to ask, the first k first; the rest (also those not named) only if these cannot serve.
    DataLossError when more than m stripes are missing or damaged for sure; NotDurableError when it may only
    be that targets do not answer now.
    """
    order = [*order, *(target for target in range(code.n) if target not in order)]
    files: dict[int, bytes | str] = {}
    silent: set[int] = set()
    for batch in (order[: code.k], order[code.k :]):
        answers = yield from read_all([(target, name.key(run, target)) for target in batch])
        for (target, _), answer in answers.items():
            files[target] = str(answer) if isinstance(answer, StoreError) else answer
            if isinstance(answer, StoreError) and not isinstance(answer, NotFoundError):
                silent.add(target)
        try:
            rebuilt = rebuild(run, name, code, files)
        except DataLossError as error:
            loss = error
            continue
        if rebuilt.header.payload_digest != digest:
            raise DamagedError(f"run {run!r}, {name.describe()}: another payload than the history names")
        return Fetched(rebuilt, frozenset(silent))
    if silent:
        raise NotDurableError(f"cannot be read now: {loss}")
    raise loss
