"""A putter killed between any two of its writes: what was acknowledged stays, and there is one history only.

The real put runs on real targets. Its writes on different targets go on side by side, so it may leave any subset of
them behind: each is tried. Then others go on: a new start, or another putter first, or a start without m targets.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from checkpoint_runs import RUN, objects, opened, put_one_base, put_steps, record, start

from bench.exactness_cores import Cores
from bench.measures import Measure, must_be, plain
from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.lineage import BaseSpec, GroupSpec
from openclaw_tasks.checkpoint.put import put_base, put_group
from openclaw_tasks.checkpoint.reader import RunReader
from openclaw_tasks.errors import DataLossError, NotDurableError, OpenClawError, StoreError
from openclaw_tasks.storage.store import Buffer, Store
from openclaw_tasks.storage.targets import TargetSet

CODES = (Code(5, 2), Code(3, 1), Code(1, 0))
BEFORE, LAST = 4, 8
"""Durable before the put, and the last step of what is put."""
_NO_END = 1 << 30

Kind = Literal["group", "degraded group", "base"]
Way = Literal["start", "another putter", "targets lost"]
_WRITES: Mapping[Kind, int] = {"group": 1, "degraded group": 2, "base": 3}
"""How many writes each target gets, one after the other: a stripe and its mark; two objects and the manifest."""
_LOOKS: Mapping[Kind, int] = {"group": 1, "degraded group": 1, "base": 2}
"""How often the fence is looked at."""


class Died(BaseException):
    """The putter's process is gone: nothing that would catch an error goes on."""


@dataclass(slots=True)
class MortalStore:
    """A target as it is used by a putter that dies after so many writes to it, or so many looks at the fence."""

    store: Store
    writes: int
    looks: int
    refuses: bool = False

    @property
    def url(self) -> str:
        return self.store.url

    def create(self, key: str, data: Buffer) -> None:
        if self.refuses:
            raise StoreError("503 slow down")
        if self.writes == 0:
            raise Died
        self.writes -= 1
        self.store.create(key, data)

    def replace(self, key: str, data: Buffer) -> None:
        raise AssertionError("a putter replaces nothing")

    def read(self, key: str) -> bytes:
        return self.store.read(key)

    def list(self, prefix: str) -> list[str]:
        if self.looks == 0:
            raise Died
        self.looks -= 1
        return self.store.list(prefix)

    def delete(self, key: str) -> None:
        raise AssertionError("a putter deletes nothing")

    def sweep_temporaries(self, older_than_seconds: float = 0.0) -> int:
        raise AssertionError("a putter sweeps nothing")


@dataclass(frozen=True, slots=True)
class Death:
    """After so many writes on each target; `looks`: so many looks at the fence."""

    kind: Kind
    writes: tuple[int, ...]
    looks: int = _NO_END

    def befall(self, targets: TargetSet) -> TargetSet:
        refusing = len(targets.urls) - 1 if self.kind == "degraded group" else None
        stores = (
            MortalStore(store, self.writes[index], self.looks, refuses=index == refusing)
            for index, store in targets.present()
        )
        return replace(targets, stores=tuple(stores))


def _deaths(kind: Kind, code: Code) -> Iterator[Death]:
    """Between any two writes in whichever order the targets are served; before the last look; and none at all."""
    writable = range(code.n - (kind == "degraded group"))
    for written in range(_WRITES[kind]):
        for more in itertools.product((0, 1), repeat=len(writable)):
            if not all(more):
                yield Death(kind, (*(written + one for one in more), *[0] * (code.n - len(writable))))
    everything = (_NO_END,) * code.n
    yield Death(kind, everything, looks=_LOOKS[kind] - 1)
    yield Death(kind, everything)


@dataclass(frozen=True, slots=True)
class Template:
    """A run whose writer and putters are gone, and what the putter is to put."""

    folder: Path
    code: Code
    group: GroupSpec
    again: GroupSpec
    base: BaseSpec


@dataclass(frozen=True, slots=True)
class Case:
    template: Template
    death: Death
    way: Way
    number: int


def killed_putters(cores: Cores, stride: int) -> list[Measure]:
    """Every `stride`-th of the deaths, each followed by everything that may follow."""
    folder = Path(os.environ["OPENCLAW_HOME"]) / "putters"
    cases: list[Case] = []
    deaths = 0
    for code in CODES:
        template = _make_template(folder / f"{code.n}-{code.m}", code)
        for kind in _WRITES:
            if kind == "degraded group" and not code.m:
                continue  # one target less is too few
            for death in list(_deaths(kind, code))[::-stride]:
                deaths += 1
                ways: Sequence[Way] = ("start", "another putter", "targets lost") if code.m else ("start",)
                cases += [Case(template, death, way, deaths) for way in ways]
    found = cores.count(_follow, cases)
    return [
        plain("putter killed between any two writes: deaths", deaths),
        plain("putter killed: what followed, in all ways", len(cases)),
        plain("putter killed: of these, after an acknowledgement", found["acknowledged"]),
        plain("putter killed: not acknowledged, and adopted", found["adopted"]),
        plain("putter killed: not acknowledged, and computed again", found["dropped"]),
        plain("putter killed: a degraded group and m more targets lost, and said so", found["loss told"]),
        *(must_be(f"putter killed: {wrong}", found[wrong], 0) for wrong in _WRONG),
    ]


_WRONG = (
    "acknowledged, and lost in silence",
    "a second history",
    "a base of other bytes",
    "an error where nothing is lost",
)


def _make_template(folder: Path, code: Code) -> Template:
    held = folder / "held"
    targets = opened(held, code.n, create=True)
    writer = start(targets, redundancy=code.m)
    put_one_base(writer, targets, 0)
    put_steps(writer, targets, BEFORE, make=_first)
    specs = (
        writer.group_spec(BEFORE + 1, LAST, "bf16"),
        # Another putter may know of more final records by then.
        writer.group_spec(BEFORE + 1, LAST + 1, "bf16"),
        writer.base_spec(BEFORE),
    )
    template = Template(folder / "dead", code, *specs)
    shutil.copytree(held, template.folder)  # of a run that nobody has released
    writer.release()
    return template


_first = partial(record, author="first", payload_bytes=48)
_second = partial(record, author="second", payload_bytes=48)


@dataclass(slots=True)
class _Wrong(Exception):
    kind: str
    what: str


def _follow(case: Case) -> Counter[str]:
    """Let the putter die, then let others go on; what came of it."""
    found = Counter[str]()
    with tempfile.TemporaryDirectory(dir=case.template.folder.parent) as place:
        folder = Path(place) / "run"
        shutil.copytree(case.template.folder, folder, copy_function=os.link)
        try:
            _play(case, folder, found)
        except (_Wrong, OpenClawError) as error:
            wrong = error if isinstance(error, _Wrong) else _Wrong("an error where nothing is lost", str(error))
            found[wrong.kind] += 1
            print(f"{case.template.code}, {case.death}, {case.way}: {wrong.kind}: {wrong.what}", file=sys.stderr)
    return found


def _play(case: Case, folder: Path, found: Counter[str]) -> None:
    code, death = case.template.code, case.death
    base_is_acknowledged = False
    promised = BEFORE
    if _survives(lambda: _put(case, folder)):
        found["acknowledged"] += 1
        base_is_acknowledged = death.kind == "base"
        promised = BEFORE if death.kind == "base" else LAST
    seen = _read(folder, code, [], _first_only, base_is_acknowledged)
    if seen < promised:
        raise _Wrong("acknowledged, and lost in silence", f"step {promised}: a reader's log ends at {seen}")
    gone: Sequence[int] = ()
    if case.way == "another putter":
        _put_again(case, folder)
        promised = LAST + 1
    elif case.way == "targets lost":
        choices = list(itertools.combinations(range(code.n), code.m))
        gone = choices[case.number % len(choices)]
        for target in gone:
            shutil.rmtree(folder / f"t{target}")
    else:
        promised = max(promised, seen)  # nothing was lost since
    try:
        adopted = _go_on(folder, code, gone)
    except (DataLossError, NotDurableError):
        if not (death.kind == "degraded group" and gone):
            raise
        found["loss told"] += 1  # redundancy is promised of whole groups
        return
    if adopted < promised:
        raise _Wrong("acknowledged, and lost in silence", f"step {promised}: a start's log ends at {adopted}")
    if death.kind != "base" and promised == BEFORE:
        found["adopted" if adopted > BEFORE else "dropped"] += 1

    def expected(step: int) -> bytes:
        return (_first if step <= adopted else _second)(step).to_bytes()

    for absent in [gone] if gone else itertools.combinations(range(code.n), code.m):
        last = _read(folder, code, absent, expected, base_is_acknowledged)
        if last != adopted + 2:
            raise _Wrong("acknowledged, and lost in silence", f"a later reader's log ends at {last}")


def _first_only(step: int) -> bytes:
    return _first(step).to_bytes()


def _survives(put: Callable[[], Any]) -> bool:
    try:
        put()
    except Died:
        return False
    return True


def _put(case: Case, folder: Path) -> None:
    targets = case.death.befall(opened(folder, case.template.code.n))
    if case.death.kind == "base":
        spec = case.template.base
        put_base(targets, spec, objects(spec.step), {"step": spec.step}, _facts(spec.step))
    else:
        _put_group(targets, case.template.group)


def _put_again(case: Case, folder: Path) -> None:
    """The supervisor still lives, and has asked another putter."""
    targets = opened(folder, case.template.code.n)
    if case.death.kind == "base":
        again = replace(case.template.base, attempt=case.template.base.attempt + 1)
        put_base(targets, again, objects(again.step), {"step": again.step}, _facts(again.step))
    _put_group(targets, case.template.again)


def _put_group(targets: TargetSet, spec: GroupSpec) -> None:
    put_group(targets, spec, [_first_only(step) for step in range(spec.first, spec.last + 1)])


def _facts(step: int) -> dict[str, Any]:
    return {"step": step, "applied": step, "weights_digest": f"w{step}", "state_digest": f"s{step}"}


def _go_on(folder: Path, code: Code, gone: Sequence[int]) -> int:
    """A new start, which computes two more steps to other bytes; the last step that it had found."""
    targets = opened(folder, code.n)
    writer = start(targets, redundancy=code.m, lease_seconds=0.0)
    try:
        adopted = writer.durable_step
        put_steps(writer, targets, adopted + 2, make=_second)
    finally:
        writer.release()
    return adopted


def _read(folder: Path, code: Code, absent: Sequence[int], expected: Callable[[int], bytes], has_base: bool) -> int:
    """Read everything from all targets but the absent ones; the last step."""
    targets = opened(folder, code.n)
    stores = tuple(None if index in absent else store for index, store in enumerate(targets.stores))
    problems = {**targets.problems, **{index: f"target {index}: away" for index in absent}}
    with RunReader(replace(targets, stores=stores, problems=problems), RUN) as reader:
        records = [found.to_bytes() for found in reader.records(1, reader.last_step)]
        if records != [expected(step) for step in range(1, reader.last_step + 1)]:
            raise _Wrong("a second history", f"without targets {absent}, a reader finds other records")
        bases = {base.step: reader.read_base(base)[0] for base in reader.lineage.bases}
    if any(found != objects(step) for step, found in bases.items()):
        raise _Wrong("a base of other bytes", f"bases {sorted(bases)}, without targets {absent}")
    if has_base and BEFORE not in bases:
        raise _Wrong("acknowledged, and lost in silence", f"base {BEFORE}, without targets {absent}")
    return reader.last_step
