"""What must hold, kept apart from the protocol: every promise made to a caller, and what has become of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from openclaw_tasks.checkpoint import paths
from openclaw_tasks.checkpoint.documents import BaseManifest, Start
from openclaw_tasks.checkpoint.history import History, group_name
from openclaw_tasks.checkpoint.lineage import GroupRef, Lineage
from openclaw_tasks.checkpoint.run_documents import base_name, object_names
from openclaw_tasks.checkpoint.stripes import parse_stripe
from openclaw_tasks.errors import DamagedError
from simulation.world import RUN, Violation, Watcher, World

Contents = dict[int, str]
"""Step -> what its record says. It names the writer, so that a second history never looks like the first."""


@dataclass(slots=True)
class Oracle(Watcher):
    world: World
    promised: Contents = field(default_factory=dict)
    """Acknowledged steps that no rollback has cut since."""
    optional: Contents = field(default_factory=dict)
    """Acknowledged steps that a rollback may have cut: it began, and perhaps never finished."""
    payloads: dict[str, Contents] = field(default_factory=dict)
    """Payload digest -> its steps."""
    cuts: list[tuple[int, int]] = field(default_factory=list)
    """Epochs that began as rollbacks, and the last step that each kept."""
    deleted: set[str] = field(default_factory=set)
    """Folders that retention has deleted from."""
    durable: set[str] = field(default_factory=set)
    """Folders of what somebody was told, or may have been told, is durable."""
    floors: dict[tuple[int, str], int] = field(default_factory=dict)
    """Per start: the highest floor that retention announced before it began to delete."""
    newest: Lineage | None = None
    """Of the highest epoch whose start was acknowledged."""
    pinned: dict[str, int] = field(default_factory=dict)
    """Living readers' pins -> first step they still need."""
    acknowledged_groups: int = 0
    acknowledged_bases: int = 0
    starts: int = 0
    deletes: int = 0
    readings: int = 0
    declared_losses: int = 0

    def on_acknowledged(self, ref: GroupRef) -> None:
        self.acknowledged_groups += 1
        self.durable.add(group_name(ref).folder(RUN))
        for step, content in self.payloads[ref.digest].items():
            if any(ref.epoch < epoch and step > end_step for epoch, end_step in self.cuts):
                self.optional[step] = content
                continue
            if self.promised.get(step, content) != content:
                raise Violation(f"second history: step {step} was {self.promised[step]}, now {content}")
            self.promised[step] = content
            self.optional.pop(step, None)
        if self.newest is not None and ref.epoch < self.newest.epoch:
            # Checked the fence before the newer epoch claimed, and hears of it only now: then that one read it.
            self.check_lineage(self.newest, self.promised, f"late acknowledgement of {ref}")

    def on_rollback(self, epoch: int, end_step: int) -> None:
        """The start of `epoch`, which cuts after `end_step`, is about to be written."""
        self.cuts.append((epoch, end_step))
        for step in [step for step in self.promised if step > end_step]:
            self.optional[step] = self.promised.pop(step)

    def on_started(self, start: Start, history: History) -> None:
        self.starts += 1
        self.durable |= {group_name(ref).folder(RUN) for ref in history.lineage.groups}
        self.check_lineage(history.lineage, self.promised, f"start of epoch {start.epoch}")
        if self.newest is None or self.newest.epoch < start.epoch:
            self.newest = Lineage(
                epoch=start.epoch,
                writer=start.writer,
                groups=start.groups,
                bases=start.bases,
                floor=start.floor,
                end_step=start.end_step,
            )

    def check_repaired(self, history: History, troubled: set[int]) -> None:
        """After a start, every target that answered it all along holds a stripe of everything adopted."""
        quiet = set(range(self.world.code.n)) - troubled - self.world.lost
        for payload in (*history.groups, *(item for base in history.bases for item in base.objects)):
            for target in quiet:
                if payload.name.key(RUN, target) not in self.world.objects[target]:
                    raise Violation(f"{payload.name.describe()} was not put back onto target {target}")

    def check_lineage(self, lineage: Lineage, promised: Mapping[int, str], where: str) -> None:
        """Every promised step is in the lineage, once, with the promised content."""
        content: Contents = {}
        position = None
        for number, ref in enumerate(lineage.groups):
            until = lineage.groups[number + 1].first - 1 if number + 1 < len(lineage.groups) else lineage.end_step
            if position is not None and ref.first != position + 1:
                raise Violation(f"{where}: group {ref} does not continue step {position}")
            for step in range(ref.first, min(ref.last, until) + 1):
                content[step] = self.payloads[ref.digest][step]
            position = min(ref.last, until)
        for step, expected in promised.items():
            if step > lineage.floor and content.get(step) != expected:
                raise Violation(f"{where}: step {step} should be {expected}, is {content.get(step)}")

    def check_loss(self, message: str, *, is_last: bool = False) -> None:
        """A declared loss must be one: of something acknowledged, adopted or marked so, less than k is left.

        And it was never whole: of what stood on all n targets, the frail ones can take away no more than m.
        Before the last start it may also be of a group that nobody was told of and that a target which is away may
        hold: the next look, when that one answers, drops it.
        """
        self.declared_losses += 1
        code = self.world.code
        for folder in self.durable - self.deleted:
            put = len(self.world.ever_created[folder])
            if code.k <= put < code.n and self._whole_stripes(folder) < code.k:
                return
        if not is_last and self._names_a_group_of_nobody(message):
            return
        raise Violation(f"loss declared, but nothing that was durable is lost: {message}")

    def _names_a_group_of_nobody(self, message: str) -> bool:
        keys = (f"{folder}0" for folder in self.world.ever_created if "/log/" in folder and folder not in self.durable)
        names = (paths.parse_group_key(RUN, key) for key in keys)
        return any(name is not None and name[0].describe() in message for name in names)

    def on_delete(self, target: int, key: str) -> None:
        self.deletes += 1
        self.deleted.add(key.rpartition("/")[0] + "/")
        group, item = paths.parse_group_key(RUN, key), paths.parse_object_key(RUN, key)
        last = group[0].last if group is not None else item[0].base.step + 1 if item is not None else None
        if last is None:
            return
        if last > max(self.floors.values(), default=0):
            raise Violation(f"{key} was deleted above every floor")
        for pin, first in self.pinned.items():
            if first <= last and self._is_adopted(key):
                raise Violation(f"{key} was deleted under pin {pin} of step {first}")
        if self.newest is not None and last > self._floor(self.newest) and self._is_adopted(key):
            raise Violation(f"{key} was deleted, and epoch {self.newest.epoch} needs it")

    def on_mark(self, key: str) -> None:
        self.durable.add(key.removesuffix("degraded.json"))

    def on_manifest(self, target: int, key: str) -> None:
        manifest = BaseManifest.parse(self.world.objects[target][key], key)
        name = manifest.name
        floor = max(self.floors.values(), default=0)
        for item in object_names(manifest):
            self.durable.add(item.folder(RUN))
            if len(self.world.ever_created[item.folder(RUN)]) < self.world.code.k and name.step >= floor:
                raise Violation(f"{key} appeared before {item.describe()} was durable")

    def _floor(self, lineage: Lineage) -> int:
        return max(lineage.floor, self.floors.get((lineage.epoch, lineage.writer), 0))

    def _is_adopted(self, key: str) -> bool:
        """Whether the newest lineage, as it started, names the object."""
        assert self.newest is not None
        group = paths.parse_group_key(RUN, key)
        if group is not None:
            return group[0] in {group_name(ref) for ref in self.newest.groups}
        item = paths.parse_object_key(RUN, key)
        return item is not None and item[0].base in {base_name(ref) for ref in self.newest.bases}

    def _whole_stripes(self, folder: str) -> int:
        whole = 0
        for target, objects in enumerate(self.world.objects):
            key = f"{folder}{target}"
            if (target, key) in self.world.landed_late:
                continue
            try:
                parse_stripe(objects[key], key, self.world.code)
            except (KeyError, DamagedError):
                continue
            whole += 1
        return whole
