"""A small log, its newest group's stripes cut at every byte: the same bytes, or one clear error; never others."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from checkpoint_runs import RUN, objects, opened, put_one_base, put_steps, read_all, record, start

from bench.exactness_cores import Cores
from bench.measures import Measure, must_be, plain
from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.reader import RunReader
from openclaw_tasks.errors import DamagedError, DataLossError, NotDurableError

CODES = (Code(5, 2), Code(3, 1), Code(1, 0))
LAST = 4
GROUP_STEPS = 2
_PARTS = 16
_ALL = 1 << 30


@dataclass(frozen=True, slots=True)
class Cuts:
    """Some places to cut at, in a copy of a run of its own."""

    run: Path
    code: Code
    positions: Sequence[int]


def cut_logs(cores: Cores, stride: int) -> list[Measure]:
    """Cut at each `stride`-th byte, on as many targets as redundancy covers and on one more."""
    folder = Path(os.environ["OPENCLAW_HOME"]) / "cuts"
    parts = []
    for code in CODES:
        run = folder / f"{code.n}-{code.m}"
        _make_run(run, code)
        (length,) = {path.stat().st_size for path in _newest_stripes(run, range(code.n))}
        positions = range(0, length, stride)
        parts += [Cuts(run, code, positions[first::_PARTS]) for first in range(_PARTS)]
    found = cores.count(_read_cut, parts)
    wrong = {kind: found[f"covered, {kind}"] + found[f"uncovered, {kind}"] for kind in _WRONG}
    return [
        plain("log cut at every byte: cuts", found["cuts"]),
        must_be("log cut on m targets: read or started as it was put", found["covered, same"], found["covered"]),
        must_be("log cut on m + 1 targets: one clear error", found["uncovered, error"], found["uncovered"]),
        *(must_be(f"log cut: {kind}", count, 0) for kind, count in wrong.items()),
    ]


_WRONG = ("other bytes", "ends earlier, and nobody says so", "an error that is not clear")


def _make_run(folder: Path, code: Code) -> None:
    targets = opened(folder, code.n, create=True)
    writer = start(targets, redundancy=code.m)
    put_one_base(writer, targets, 0)
    put_steps(writer, targets, LAST, group_steps=GROUP_STEPS, make=_small)
    writer.release()


_small = partial(record, payload_bytes=48)


def _newest_stripes(folder: Path, targets: Sequence[int]) -> list[Path]:
    """The files of the newest group on these targets."""
    name = f"*.{LAST - GROUP_STEPS + 1}-{LAST}.*/*"
    return [path for target in targets for path in (folder / f"t{target}" / RUN / "log").rglob(name)]


def _read_cut(cuts: Cuts) -> Counter[str]:
    """How readers and starts took each cut."""
    code, found = cuts.code, Counter[str]()
    with tempfile.TemporaryDirectory(dir=cuts.run.parent) as place:
        folder = Path(place) / "run"
        shutil.copytree(cuts.run, folder)
        for position in cuts.positions:
            for num_damaged in range(max(code.m, 1), code.m + 2):
                choices = list(itertools.combinations(range(code.n), num_damaged))
                damaged = choices[position % len(choices)]
                kind = "covered" if num_damaged <= code.m else "uncovered"
                with _cut(folder, damaged, position):
                    for act in _acts(folder, code, is_covered=num_damaged <= code.m):
                        outcome = _outcome(act, f"{code}, targets {damaged} cut at {position}")
                        found.update([kind, f"{kind}, {outcome}"])
                found["cuts"] += 1
    return found


def _acts(folder: Path, code: Code, *, is_covered: bool) -> Iterator[Callable[[], list[bytes]]]:
    if is_covered:
        yield lambda: _read(folder, code, 0)
        yield lambda: _read(folder, code, _ALL)
    elif code.m:
        # Who reads all stripes, or the only one, looks again for a second, for what may just be written.
        yield lambda: _read(folder, code, 0)
    yield lambda: _start(folder, code)


@contextmanager
def _cut(folder: Path, targets: Sequence[int], position: int) -> Iterator[None]:
    whole = {path: path.read_bytes() for path in _newest_stripes(folder, targets)}
    assert len(whole) == len(targets)
    for path, data in whole.items():
        path.write_bytes(data[:position])
    yield
    for path, data in whole.items():
        path.write_bytes(data)


def _read(folder: Path, code: Code, deep_bytes: int) -> list[bytes]:
    """The log's records, one after the other."""
    with RunReader(opened(folder, code.n), RUN, deep_bytes=deep_bytes) as reader:
        records, bases = read_all(reader)
    assert bases == [objects(0)]
    return records


def _start(folder: Path, code: Code) -> list[bytes]:
    """The records after a start, which has put back what was cut."""
    copy = folder.with_name("started")
    shutil.copytree(folder, copy, copy_function=os.link)  # what is written anew is another file
    try:
        start(opened(copy, code.n), redundancy=code.m, lease_seconds=0.0).release()
        with RunReader(opened(copy, code.n), RUN, deep_bytes=_ALL) as reader:
            assert not reader.warnings, f"not put back: {reader.warnings}"
            return read_all(reader)[0]
    finally:
        shutil.rmtree(copy)


def _outcome(act: Callable[[], list[bytes]], what: str) -> str:
    put = [_small(step).to_bytes() for step in range(1, LAST + 1)]
    outcome = "other bytes"
    try:
        found = act()
    except (DataLossError, DamagedError, NotDurableError) as error:
        if "\n" not in str(error) and f"steps {LAST - GROUP_STEPS + 1} to {LAST}" in str(error):
            return "error"
        outcome = f"an error that is not clear: {error}"
    except Exception as error:  # noqa: BLE001 - whatever else is raised, is not what a reader is to get
        outcome = f"an error that is not clear: {type(error).__name__}: {error}"
    else:
        if found == put:
            return "same"
        if found == put[: len(found)]:
            outcome = "ends earlier, and nobody says so"
    print(f"{what}: {outcome}", file=sys.stderr)
    return outcome.split(":")[0]
