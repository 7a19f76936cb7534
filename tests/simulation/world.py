"""The simulated targets: dictionaries with create-only keys, and everything that can go wrong with them.

One operation at a time takes effect. A target may be out for a while (every operation times out), lost for ever, or
hold a rotten object. An operation may take effect and its answer be lost, or take effect much later than its
deadline. Only the targets in `frail` are ever lost or rotten, and there are at most m of them: that is what the
redundancy promises to cover. Outages hit any target.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

from openclaw_tasks.checkpoint import paths
from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.operations import Answer, Create, Delete, List, Operation, Pause, Read, Replace
from openclaw_tasks.errors import AlreadyExistsError, NotFoundError, StoreTimeoutError, TargetLostError

RUN = "run"


class Violation(AssertionError):
    """The protocol broke a promise."""


@dataclass(slots=True)
class Odds:
    """Chances per operation."""

    crash: float
    outage: float
    recovery: float
    loss: float
    rot: float
    lost_answer: float
    late_effect: float

    @classmethod
    def drawn(cls, rng: random.Random) -> Odds:
        """Some schedules are rough, some are calm, some know only one kind of trouble."""
        return cls(
            crash=rng.choice((0.0, 0.001, 0.004)),
            outage=rng.choice((0.0, 0.003, 0.01)),
            recovery=rng.choice((0.02, 0.05)),
            loss=rng.choice((0.0, 0.001, 0.003)),
            rot=rng.choice((0.0, 0.0, 0.003)),
            lost_answer=rng.choice((0.0, 0.003, 0.01)),
            late_effect=rng.choice((0.0, 0.003, 0.01)),
        )


@dataclass(slots=True)
class World:
    code: Code
    rng: random.Random
    odds: Odds
    objects: list[dict[str, bytes]] = field(default_factory=list)
    out: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    frail: set[int] = field(default_factory=set)
    late: list[Operation] = field(default_factory=list)
    ever_created: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    landed_late: set[tuple[int, str]] = field(default_factory=set)
    """Created after their callers had given up: nobody counts on them, and nobody may be blamed for missing them."""
    watchers: list[Watcher] = field(default_factory=list)
    is_calm: bool = False

    def __post_init__(self) -> None:
        self.objects = [{} for _ in range(self.code.n)]
        self.frail = set(self.rng.sample(range(self.code.n), self.code.m))

    def perform(self, operation: Operation) -> Answer:
        """Let one operation take effect, or not, and answer it."""
        assert isinstance(operation, Create | Replace | Read | List | Delete)
        target = operation.target
        if target in self.lost:
            return TargetLostError(f"t{target} is gone")
        if target in self.out:
            return StoreTimeoutError(f"t{target} does not answer")
        if not self.is_calm and not isinstance(operation, Read | List):
            chance = self.rng.random()
            if chance < self.odds.late_effect:
                self.late.append(operation)
                return StoreTimeoutError(f"t{target}: no answer in time")
            if chance < self.odds.late_effect + self.odds.lost_answer:
                self._apply(operation)
                return StoreTimeoutError(f"t{target}: the answer was lost")
        return self._apply(operation)

    def disturb(self) -> None:
        """Let one chance of everything pass."""
        rng, odds = self.rng, self.odds
        if rng.random() < odds.outage and len(self.out | self.lost) < self.code.m + (rng.random() < 0.1):
            self.out.add(rng.randrange(self.code.n))
        if self.out and rng.random() < odds.recovery:
            self.out.discard(rng.choice(sorted(self.out)))
        if self.frail and rng.random() < odds.loss:
            self.lose(rng.choice(sorted(self.frail)))
        if self.frail and rng.random() < odds.rot:
            self._rot(rng.choice(sorted(self.frail)))
        if self.late and rng.random() < 0.05:
            operation = self.late.pop(rng.randrange(len(self.late)))
            self.land(operation)

    def land(self, operation: Operation) -> None:
        """An operation takes effect whose caller has long been told that it did not."""
        assert not isinstance(operation, Pause)
        if operation.target not in self.lost:
            before = set(self.ever_created[folder_of(operation.key)]) if isinstance(operation, Create) else set()
            if self._apply(operation) is None and isinstance(operation, Create):
                self.landed_late.add((operation.target, operation.key))
                self.ever_created[folder_of(operation.key)] = before

    def lose(self, target: int) -> None:
        self.lost.add(target)
        self.objects[target].clear()

    def _rot(self, target: int) -> None:
        keys = sorted(
            key for key in self.objects[target] if any(part in key for part in ("/log/", "/base/", "/start/"))
        )
        if keys:
            key = self.rng.choice(keys)
            data = bytearray(self.objects[target][key])
            data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
            self.objects[target][key] = bytes(data)

    def _apply(self, operation: Operation) -> Answer:
        assert isinstance(operation, Create | Replace | Read | List | Delete)
        objects = self.objects[operation.target]
        match operation:
            case Create(_, key, data):
                if key in objects:
                    return AlreadyExistsError(f"{key} exists")
                objects[key] = bytes(data)
                self._written(operation.target, key)
            case Replace(_, key, data):
                objects[key] = bytes(data)
                self._written(operation.target, key)
            case Read(_, key):
                return objects[key] if key in objects else NotFoundError(f"no {key}")
            case List(_, prefix):
                return sorted(key for key in objects if key.startswith(prefix))
            case Delete(target, key):
                if objects.pop(key, None) is not None:
                    for watcher in self.watchers:
                        watcher.on_delete(target, key)
        return None

    def _written(self, target: int, key: str) -> None:
        self.ever_created[folder_of(key)].add(target)
        if paths.parse_degraded_key(RUN, key) is not None:
            for watcher in self.watchers:
                watcher.on_mark(key)
        if paths.parse_manifest_key(RUN, key) is not None:
            for watcher in self.watchers:
                watcher.on_manifest(target, key)


def folder_of(key: str) -> str:
    """Of a stripe, its payload's folder; other keys stand for themselves."""
    return key.rpartition("/")[0] + "/" if key[-1].isdigit() else key


class Watcher:
    """Told of what takes effect."""

    def on_delete(self, target: int, key: str) -> None:
        """`key` is gone from `target`."""

    def on_mark(self, key: str) -> None:
        """A group was marked as acknowledged with fewer than n."""

    def on_manifest(self, target: int, key: str) -> None:
        """A manifest appeared."""
