"""Flow processes and putters: the product's generators, put together the way these do."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from openclaw_tasks.checkpoint.commit import StripedObject, commit_base, commit_group, commit_note
from openclaw_tasks.checkpoint.documents import BaseManifest, BaseNote, BaseObject, Holder
from openclaw_tasks.checkpoint.history import read_history
from openclaw_tasks.checkpoint.lineage import BaseRef, GroupRef, Lineage
from openclaw_tasks.checkpoint.operations import (
    Pause,
    Replace,
    Steps,
    create_everywhere,
)
from openclaw_tasks.checkpoint.paths import BaseName, GroupName, ObjectName
from openclaw_tasks.checkpoint.repair import repair
from openclaw_tasks.checkpoint.retention import choose_floor, retain
from openclaw_tasks.checkpoint.start import Rollback, Starter, claim_epoch, start_epoch
from openclaw_tasks.checkpoint.stripes import StripeIdentity, build_stripes
from openclaw_tasks.errors import (
    DataLossError,
    FencedError,
    JobError,
    NotDurableError,
)
from simulation.cast import PROCESS, Actor, Cast
from simulation.promises import Contents
from simulation.rules import blind_to_claims, blind_to_pins, noting_trouble, without_writes
from simulation.world import RUN


@dataclass(slots=True)
class Outcome:
    """What a putter reports: the group as stored, or that it failed."""

    ref: GroupRef | None = None
    is_done: bool = False
    is_fenced: bool = False


def put_group(cast: Cast, name: GroupName, previous: str, contents: Contents, outcome: Outcome) -> Steps[None]:
    """A putter's life: one attempt at one group."""
    code = cast.world.code
    payload = repr(sorted(contents.items())).encode()
    digest = hashlib.sha256(payload).hexdigest()
    cast.oracle.payloads[digest] = contents
    stripes = build_stripes(payload, code, StripeIdentity(RUN, name, "exact", previous or None))
    steps = commit_group(code, RUN, name, stripes)
    if cast.left_out == "fence check":
        steps = blind_to_claims(steps, name.epoch)
    if cast.left_out == "degraded mark":
        steps = without_writes(steps, "degraded")
    try:
        yield from steps
    except NotDurableError:
        outcome.is_done = True
        return
    except FencedError:
        outcome.is_done = outcome.is_fenced = True
        return
    outcome.ref = GroupRef(
        epoch=name.epoch,
        writer=name.writer,
        seq=name.sequence,
        attempt=name.attempt,
        first=name.first,
        last=name.last,
        previous=previous,
        digest=digest,
        size=len(payload),
    )
    outcome.is_done = True


class Writer:
    """A flow process: starts, then commits groups and bases, verifies, repairs, retains, until it is tired."""

    def __init__(self, cast: Cast, name: str) -> None:
        self.cast = cast
        self.name = name
        self.attempts = 0
        self.beats = 0
        self.starter = Starter(
            run=RUN,
            code=cast.world.code,
            writer=name,
            process=PROCESS,
            target_uuids=[f"u{i}" for i in range(cast.world.code.n)],
            job={},
            identity={},
        )
        self.epoch = 0
        self.lineage = Lineage(epoch=0, writer="")

    def live(self) -> Steps[None]:
        rng = self.cast.world.rng
        actions = (self.commit, self.snapshot, self.verify, self.delete_old, self.mend, self.quarantine)
        weights = rng.choice(((8, 3, 3, 2, 1, 0.3), (4, 4, 5, 4, 1, 0), (9, 1, 1, 1, 2, 0)))
        try:
            for _ in range(3):
                try:
                    yield from self.begin()
                    break
                except NotDurableError:
                    yield [Pause(1)]
            else:
                return
            if not self.lineage.bases:
                yield from self.put_base(0)
            for _ in range(rng.choice((2, 5, 9, 25))):
                action = rng.choices(actions, weights)[0]
                try:
                    yield from action()
                except NotDurableError:
                    yield [Pause(1)]
        except (FencedError, NotDurableError):
            return

    def begin(self) -> Steps[None]:
        rng, oracle, code = self.cast.world.rng, self.cast.oracle, self.cast.world.code
        deep = 0 if rng.random() < 0.3 else 1 << 30
        early = None
        if self.cast.left_out == "claim before read":
            early = yield from read_history(RUN, code.n, code, deep_bytes=deep)
        self.epoch = yield from claim_epoch(self.starter, jitter=lambda: 1.0)
        history = early or (yield from read_history(RUN, code.n, code, deep_bytes=deep))
        if self.cast.left_out == "torn tail":
            history = replace(history, stuck=None)
        rollback = None
        steps = [base.ref.step for base in history.bases]
        if rng.random() < 0.15 and steps and history.stuck is None and history.lineage.end_step > min(steps):
            rollback = Rollback(rng.randint(min(steps), history.lineage.end_step - 1), (10**6 + self.epoch,))
            oracle.on_rollback(self.epoch, rollback.end_step)
        steps_ = start_epoch(self.starter, self.epoch, history, rollback)
        if self.cast.left_out == "repair":
            steps_ = without_writes(steps_, "/log/", "/base/")
        troubled = set(history.survey.unknown)
        try:
            start, adopted = yield from noting_trouble(steps_, troubled)
        except DataLossError as error:
            oracle.check_loss(str(error))
            raise NotDurableError("given up") from error
        except JobError:
            assert rollback is not None
            raise NotDurableError("given up") from None
        oracle.on_started(start, adopted)
        if deep:
            oracle.check_repaired(adopted, troubled)
        self.lineage = replace(adopted.lineage, epoch=start.epoch, writer=start.writer)

    def commit(self) -> Steps[None]:
        """One group, by one putter after the other until one reports it durable."""
        rng = self.cast.world.rng
        groups = self.lineage.groups
        sequence = groups[-1].seq + 1 if groups else 1
        previous = groups[-1].digest if groups else ""
        first = self.lineage.end_step + 1
        for _ in range(4):
            last = first + rng.randint(0, 2)  # a fresh gang may cut elsewhere
            contents = {step: f"{self.epoch}-{self.name}:{step}" for step in range(first, last + 1)}
            self.attempts += 1
            name = GroupName(self.epoch, self.name, sequence, first, last, self.attempts)
            outcome = Outcome()
            self.cast.new_actors.append(Actor(put_group(self.cast, name, previous, contents, outcome)))
            patience = rng.choice((60, 400, 10**6))
            while not outcome.is_done and patience > 0:
                patience -= 1
                yield [Pause(1)]
                if rng.random() < 0.002:
                    break
            if outcome.is_fenced:
                raise FencedError("a putter saw a newer epoch")
            if outcome.ref is not None:
                self.cast.oracle.on_acknowledged(outcome.ref)
                if rng.random() < 0.5:
                    self.cast.new_actors.append(Actor(self.beat(outcome.ref.last)))
                self.lineage = replace(self.lineage, groups=(*groups, outcome.ref), end_step=outcome.ref.last)
                return

    def beat(self, durable_step: int) -> Steps[None]:
        """The heartbeat says how far the log is."""
        self.beats += 1
        holder = Holder(
            run=RUN,
            epoch=self.epoch,
            writer=self.name,
            counter=self.beats,
            released=False,
            durable_step=durable_step,
            agents=(),
            process=PROCESS,
        )
        yield [Replace(target, holder.key, holder.to_bytes()) for target in range(self.cast.world.code.n)]

    def die(self) -> None:
        """The agents live on for a while, and flush what they hold, more than one of them at once."""
        rng = self.cast.world.rng
        if not self.lineage.bases or rng.random() < 0.5:
            return
        last = self.lineage.end_step + rng.randint(1, 3)
        for rank in range(rng.randint(1, 2)):
            groups, first = list(self.lineage.groups), self.lineage.end_step + 1
            while groups and groups[-1].epoch == self.epoch and rng.random() < 0.4:
                first = groups.pop().first  # the agent has not heard of the latest
            name = GroupName(self.epoch, self.name, groups[-1].seq + 1 if groups else 1, first, last, 1000 + rank)
            contents = {step: f"{self.epoch}-{self.name}:{step}" for step in range(first, last + 1)}
            previous = groups[-1].digest if groups else ""
            self.cast.new_actors.append(Actor(put_group(self.cast, name, previous, contents, Outcome())))

    def snapshot(self) -> Steps[None]:
        yield from self.put_base(self.lineage.end_step)

    def put_base(self, step: int) -> Steps[None]:
        code, rng = self.cast.world.code, self.cast.world.rng
        name = BaseName(step, self.epoch, self.name)
        objects: list[StripedObject] = []
        entries: list[BaseObject] = []
        for label in ("params", "optimizer")[: rng.randint(1, 2)]:
            self.attempts += 1
            payload = f"{label}:{step}".encode() * 3
            digest = hashlib.sha256(payload).hexdigest()
            item = ObjectName(name, label, self.attempts)
            objects.append(StripedObject(item, build_stripes(payload, code, StripeIdentity(RUN, item, None, None))))
            entries.append(
                BaseObject(
                    name=label,
                    attempt=self.attempts,
                    object_bytes=len(payload),
                    object_digest=digest,
                    payload_bytes=len(payload),
                    payload_digest=digest,
                )
            )
        manifest = BaseManifest(
            run=RUN,
            step=step,
            epoch=self.epoch,
            writer=self.name,
            n=code.n,
            m=code.m,
            applied=step,
            objects=tuple(entries),
            plain={},
            weights_digest="w",
            state_digest="s",
        )
        if self.cast.left_out == "parts before manifest":
            yield from create_everywhere(code, manifest.key, manifest.to_bytes())
        steps = commit_base(code, RUN, self.epoch, objects, lambda: manifest)
        if self.cast.left_out == "fence check":
            steps = blind_to_claims(steps, self.epoch)
        yield from steps
        self.cast.oracle.acknowledged_bases += 1
        others = [ref for ref in self.lineage.bases if ref.step != step]
        own = BaseRef(epoch=self.epoch, writer=self.name, step=step)
        self.lineage = replace(self.lineage, bases=(*others, own))

    def verify(self) -> Steps[None]:
        waiting = [ref for ref in self.lineage.bases if not ref.verified and ref.step <= self.lineage.end_step]
        if not waiting:
            return
        ref = self.cast.world.rng.choice(waiting)
        note = BaseNote(run=RUN, step=ref.step, epoch=ref.epoch, writer=ref.writer, mark="verified", facts={})
        yield from commit_note(self.cast.world.code, self.epoch, note)
        bases = tuple(replace(base, verified=True) if base == ref else base for base in self.lineage.bases)
        self.lineage = replace(self.lineage, bases=bases)

    def quarantine(self) -> Steps[None]:
        """A base failed to load; there is an older or a newer one."""
        usable = [ref for ref in self.lineage.bases if ref.step <= self.lineage.end_step]
        if len(usable) < 3:
            return
        ref = self.cast.world.rng.choice(usable)
        note = BaseNote(run=RUN, step=ref.step, epoch=ref.epoch, writer=ref.writer, mark="quarantined", facts={})
        self.lineage = replace(self.lineage, bases=tuple(b for b in self.lineage.bases if b != ref))
        yield from commit_note(self.cast.world.code, self.epoch, note)

    def delete_old(self) -> Steps[None]:
        floor = choose_floor(self.lineage.bases, self.lineage.end_step)
        if floor is None or floor <= self.lineage.floor:
            return
        oracle, left_out = self.cast.oracle, self.cast.left_out
        for _ in range(self.cast.world.rng.choice((0, 0, 500))):
            yield [Pause(1)]  # stopped for a while, and perhaps overtaken
        steps = retain(
            self.cast.world.code,
            RUN,
            self.epoch,
            self.name,
            floor,
            expired=frozenset(self.cast.dead_pins),
            grace_seconds=1.0,
        )
        if left_out == "pins before deletes":
            steps = blind_to_pins(steps)
        if left_out == "claims before deletes":
            steps = blind_to_claims(steps, self.epoch)
        if left_out == "announced floor":
            steps = without_writes(steps, "/floor/")
        oracle.floors[self.epoch, self.name] = floor
        yield from steps
        self.lineage = replace(
            self.lineage,
            floor=floor,
            bases=tuple(ref for ref in self.lineage.bases if ref.step >= floor),
            groups=tuple(ref for ref in self.lineage.groups if ref.last > floor) or self.lineage.groups[-1:],
        )

    def mend(self) -> Steps[None]:
        """Repair while running: what a target that was away lacks."""
        code = self.cast.world.code
        history = yield from read_history(RUN, code.n, code)
        if history.stuck is None and history.lineage.epoch == self.epoch:
            try:
                yield from repair(history)
            except DataLossError as error:
                self.cast.oracle.check_loss(str(error))
