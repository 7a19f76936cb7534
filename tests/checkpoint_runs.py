"""A run on real targets, without training: records and bases whose bytes only depend on the step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from openclaw_tasks.checkpoint.put import GroupResult, put_base, put_group
from openclaw_tasks.checkpoint.reader import RunReader
from openclaw_tasks.checkpoint.writer import RunWriter
from openclaw_tasks.exact.record import Record
from openclaw_tasks.storage.targets import TargetSet, open_targets

RUN = "lm"
IDENTITY: Mapping[str, Any] = {"fixed": {"seed": 1}}


def urls(folder: Path, count: int = 5) -> list[str]:
    return [f"file://{folder}/t{index}" for index in range(count)]


def opened(folder: Path, count: int = 5, *, create: bool = False) -> TargetSet:
    return open_targets(urls(folder, count), deadline_seconds=10.0, create=create)


def start(targets: TargetSet, *, redundancy: int = 2, **more: Any) -> RunWriter:
    more = {"lease_seconds": 1.0, "wait_seconds": 0.0, "identity": IDENTITY, "job": {}, **more}
    return RunWriter.start(targets, RUN, redundancy=redundancy, **more)


def record(step: int, *, author: str = "gradient", payload_bytes: int = 4096) -> Record:
    """The step's record. Another author's says something else: that would be a second history."""
    payload = hashlib.shake_256(f"{author} {step}".encode()).digest(payload_bytes)
    return Record(
        step=step,
        decision="apply",
        items=16,
        loss=1.0 / step,
        present=b"\x01",
        buffers=(),
        codec="bf16",
        payload=payload,
        scaler=None,
    )


def objects(step: int) -> dict[str, bytes]:
    return {name: hashlib.shake_256(f"{name} {step}".encode()).digest(3000) for name in ("params", "optimizer")}


def put_one_base(writer: RunWriter, targets: TargetSet, step: int) -> None:
    facts = {"step": step, "applied": step, "weights_digest": f"w{step}", "state_digest": f"s{step}"}
    writer.record_base(put_base(targets, writer.base_spec(step), objects(step), {"step": step}, facts))


def put_steps(
    writer: RunWriter,
    targets: TargetSet,
    last: int,
    *,
    group_steps: int = 4,
    make: Callable[[int], Record] = record,
) -> list[GroupResult]:
    """Commit everything up to `last`."""
    results = []
    while writer.durable_step < last:
        first = writer.durable_step + 1
        spec = writer.group_spec(first, min(first + group_steps - 1, last), "bf16")
        result = put_group(targets, spec, [make(step).to_bytes() for step in range(spec.first, spec.last + 1)])
        writer.record_group(result)
        results.append(result)
    return results


def make_run(
    folder: Path,
    *,
    count: int = 5,
    redundancy: int = 2,
    steps: int = 10,
    bases: Sequence[int] = (4, 8),
    identity: Mapping[str, Any] = IDENTITY,
) -> None:
    """A finished run with bases 0 and `bases`, and records up to `steps`."""
    targets = opened(folder, count, create=True)
    writer = start(targets, redundancy=redundancy, identity=identity)
    put_one_base(writer, targets, 0)
    for step in bases:
        put_steps(writer, targets, step)
        put_one_base(writer, targets, step)
    put_steps(writer, targets, steps)
    writer.release()


def read_all(reader: RunReader) -> tuple[list[bytes], list[dict[str, memoryview]]]:
    """The bytes of every record and base kept."""
    records = [found.to_bytes() for found in reader.records(reader.lineage.floor + 1, reader.last_step)]
    return records, [reader.read_base(base)[0] for base in reader.lineage.bases]


def check_whole(reader: RunReader, steps: int = 10, bases: Sequence[int] = (0, 4, 8)) -> None:
    """Every byte is as it was put."""
    records, found = read_all(reader)
    assert records == [record(step).to_bytes() for step in range(1, steps + 1)]
    assert found == [objects(step) for step in bases]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file, to show that nothing was changed."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
