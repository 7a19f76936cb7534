"""The report of a run: what its events, over all attempts, come to."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from openclaw_tasks.errors import DamagedError
from openclaw_tasks.observe.events import Event

_LARGEST: Final = sys.float_info.max


class _ByKey:
    """Lets Python read the report, and its parts, by key too, as its JSON is read."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        if name not in type(self).__dataclass_fields__:  # type: ignore[attr-defined]
            raise KeyError(name)
        return getattr(self, name)


@dataclass(frozen=True, slots=True)
class LossEnds(_ByKey):
    """Mean loss per item of the first and of the last step."""

    first: float | None = None
    last: float | None = None


@dataclass(frozen=True, slots=True)
class WorldSize(_ByKey):
    """How many ranks computed the steps from `from_step` on."""

    from_step: int
    ranks: int


@dataclass(frozen=True, slots=True)
class RecoveryCost(_ByKey):
    """One recovery: seconds from the kill, and how many steps were applied and had to be computed again."""

    step: int | None
    cause: str | None
    detected_seconds: float | None
    recovered_seconds: float | None
    overhead_seconds: float | None
    steps_lost: int | None


@dataclass(frozen=True, slots=True)
class Report(_ByKey):
    """The whole history of a run. What is not known is None, never 0."""

    run: str
    recipe: str | None = None
    planned_steps: int | None = None
    final_step: int | None = None
    applied: int | None = None
    weights_digest: str | None = None
    state_digest: str | None = None
    loss: LossEnds = LossEnds()
    world_sizes: tuple[WorldSize, ...] = ()
    recoveries: tuple[RecoveryCost, ...] = ()
    durable_step: int | None = None
    log_bytes: int | None = None
    base_bytes: int | None = None
    full_checkpoint_bytes: int | None = None
    degraded_groups: int | None = None
    verified_steps: tuple[int, ...] = ()
    stage_seconds: Mapping[str, float] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The report of plain JSON values."""
        fields = asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(self.document(), indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Report:
        """The report that `to_json` wrote. Raises DamagedError for anything else."""
        try:
            document = json.loads(text)
            return cls(
                **{
                    **document,
                    "loss": LossEnds(**document["loss"]),
                    "world_sizes": tuple(WorldSize(**item) for item in document["world_sizes"]),
                    "recoveries": tuple(RecoveryCost(**item) for item in document["recoveries"]),
                    "verified_steps": tuple(document["verified_steps"]),
                }
            )
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedError(f"not a report: {error!r}; use what Report.to_json wrote") from error


def fold_report(
    events: Iterable[Event],
    *,
    run: str,
    recipe: str | None = None,
    planned_steps: int | None = None,
) -> Report:
    """The report of `run` from its events, oldest first. `recipe` and `planned_steps` stand in for events.

    Digests, `applied` and `final_step` are those of the end: of "finished", or, of an attempt that did not
    finish, of the last step done (digests only where a segment ended there). Bytes are all that were put,
    over all attempts; a group or base put again under the same name counts once.
    """
    fold = _Fold(Report(run=run, recipe=recipe, planned_steps=planned_steps))
    for event in events:
        fold.add(event)
    return fold.result()


class _Fold:
    """Facts gathered so far; each kind of event has its method."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._first_step: tuple[int, float | None] | None = None
        self._last_step: tuple[int, float | None] | None = None
        self._position: int | None = None
        self._end: Event = {}
        self._groups: dict[object, tuple[int | None, bool]] = {}
        self._bases: dict[object, int | None] = {}
        self._verified: dict[int, bool] = {}
        self._stage_seconds: dict[str, float] = {}
        self._takers = {
            "attempt-started": self._attempt_started,
            "step": self._step,
            "recovery": self._recovery,
            "durable": self._durable,
            "base": self._base,
            "boundary": self._boundary,
            "verified": self._verify,
            "stage": self._stage,
            "finished": self._finished,
        }

    def add(self, event: Event) -> None:
        taker = self._takers.get(text(event, "kind") or "")
        if taker is not None:
            taker(event)

    def result(self) -> Report:
        ends_here = self._position is not None and whole(self._end, "step") == self._position
        end = self._end if ends_here else {}
        first, last = self._first_step, self._last_step
        sizes = [size for size, _ in self._groups.values() if size is not None]
        base_sizes = [size for size in self._bases.values() if size is not None]
        return replace(
            self._report,
            final_step=self._position,
            applied=whole(end, "applied"),
            weights_digest=text(end, "weights_digest"),
            state_digest=text(end, "state_digest"),
            loss=LossEnds(first[1] if first else None, last[1] if last else None),
            log_bytes=sum(sizes) if sizes else None,
            base_bytes=sum(base_sizes) if base_sizes else None,
            degraded_groups=sum(degraded for _, degraded in self._groups.values()) if self._groups else None,
            verified_steps=tuple(sorted(step for step, ok in self._verified.items() if ok)),
            stage_seconds=dict(self._stage_seconds),
        )

    def _change(self, **changes: Any) -> None:
        self._report = replace(self._report, **changes)

    def _attempt_started(self, event: Event) -> None:
        resumed = whole(event, "resumed_step")
        self._change(
            recipe=text(event, "recipe") or self._report.recipe,
            planned_steps=whole(event, "planned_steps") or self._report.planned_steps,
        )
        if resumed is not None:
            # What was computed past it, and not durable, is gone.
            self._position = resumed
            self._change(durable_step=resumed or None)

    def _step(self, event: Event) -> None:
        step = whole(event, "step")
        if step is None:
            return
        fact = (step, number(event, "loss"))
        if self._first_step is None or step <= self._first_step[0]:
            self._first_step = fact
        self._last_step = fact
        self._position = step
        self._world_size(step, whole(event, "ranks"))

    def _world_size(self, step: int, ranks: int | None) -> None:
        """By the steps done, not by the formations made: one that changes again before a step is done is none."""
        if ranks is None:
            return
        before = [size for size in self._report.world_sizes if size.from_step < step]
        if not before or before[-1].ranks != ranks:
            before.append(WorldSize(step, ranks))
        self._change(world_sizes=tuple(before))

    def _recovery(self, event: Event) -> None:
        recovery = RecoveryCost(
            step=whole(event, "step"),
            cause=text(event, "cause"),
            detected_seconds=number(event, "detected_seconds"),
            recovered_seconds=number(event, "recovered_seconds"),
            overhead_seconds=number(event, "overhead_seconds"),
            steps_lost=whole(event, "steps_lost"),
        )
        self._change(recoveries=(*self._report.recoveries, recovery))

    def _durable(self, event: Event) -> None:
        step = whole(event, "step")
        name = text(event, "group") or f"event {len(self._groups)}"
        # Again under the same name: repaired, its size as first told.
        size_bytes = whole(event, "log_bytes")
        if size_bytes is None and name in self._groups:
            size_bytes = self._groups[name][0]
        self._groups[name] = (size_bytes, event.get("degraded") is True)
        if step is not None:
            self._change(durable_step=max(step, self._report.durable_step or 0))

    def _base(self, event: Event) -> None:
        name = text(event, "base") or f"event {len(self._bases)}"
        self._bases[name] = whole(event, "bytes")

    def _boundary(self, event: Event) -> None:
        self._end = event

    def _verify(self, event: Event) -> None:
        step = whole(event, "step")
        if step is not None:
            self._verified[step] = event.get("ok") is True

    def _stage(self, event: Event) -> None:
        name, seconds = text(event, "name"), number(event, "seconds")
        if name is not None and seconds is not None:
            self._stage_seconds[name] = self._stage_seconds.get(name, 0.0) + seconds

    def _finished(self, event: Event) -> None:
        final_step = whole(event, "final_step")
        self._end = {**event, "step": final_step}
        self._position = final_step if final_step is not None else self._position
        full_bytes = whole(event, "full_checkpoint_bytes")
        self._change(full_checkpoint_bytes=full_bytes or self._report.full_checkpoint_bytes)


def whole(event: Event, name: str) -> int | None:
    """The whole number under `name`; None where there is none."""
    value = event.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(event: Event, name: str) -> float | None:
    """The finite number under `name`; None where there is none."""
    value = event.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -_LARGEST <= value <= _LARGEST else None


def text(event: Event, name: str) -> str | None:
    """The text under `name`; None where there is none."""
    value = event.get(name)
    return value if isinstance(value, str) else None
