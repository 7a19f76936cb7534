"""The putter of `scaling`: seals and puts groups as an agent does, in a process of its own without torch."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bench.overhead_process import Answer, AskedProcess, answer_all
from bench.scaling_memory import MemoryWatch, memory_of
from openclaw_tasks.checkpoint.lineage import GroupSpec
from openclaw_tasks.checkpoint.put import put_group
from openclaw_tasks.exact.record import Record, seal_record
from openclaw_tasks.gang.keeper import AGENT_VARIABLES
from openclaw_tasks.storage.targets import open_targets

DEADLINE_SECONDS = 120.0
_PATTERN_ELEMENTS = 1 << 22


class Put(NamedTuple):
    """Seconds of each group; bytes of a record; the process's own memory before the first, and at its peak."""

    seconds: list[float]
    record_bytes: int
    idle_bytes: int
    peak_bytes: int


def put_groups(run: str, targets: Sequence[str], redundancy: int, numel: int, records: int, groups: int) -> Put:
    """Put `groups` groups of so many records of `numel` bfloat16 numbers, in a process like an agent's."""
    with AskedProcess("bench.scaling_putter", AGENT_VARIABLES) as process:
        how = {"run": run, "targets": targets, "redundancy": redundancy, "numel": numel}
        return Put(**process.ask("put", **how, records=records, groups=groups))


def answer(what: str, run: str, targets: list[str], redundancy: int, numel: int, records: int, groups: int) -> Answer:
    assert what == "put", what
    opened = open_targets(targets, deadline_seconds=DEADLINE_SECONDS, create=True)
    payload = bf16_noise(numel)
    made = [_record(step, payload) for step in range(1, records + 1)]
    with MemoryWatch() as watch:
        watch.add("putter", os.getpid())
        idle = memory_of(os.getpid()).own
        seconds, previous = [], ""
        for number in range(groups):
            first = number * records + 1
            last = first + records - 1
            spec = GroupSpec(run, 1, "scaling", number + 1, 1, first, last, previous, "bf16", redundancy)
            begun = time.perf_counter()
            for record in made:
                seal_record(memoryview(record))
            result = put_group(opened, spec, made)
            seconds.append(time.perf_counter() - begun)
            assert result.acked == len(targets), result
            previous = result.ref.digest
    peak = watch.peaks()["putter"].own
    return {"seconds": seconds, "record_bytes": len(made[0]), "idle_bytes": idle, "peak_bytes": peak}


def bf16_noise(numel: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """As many normally distributed bfloat16 numbers: they compress as gradients do, in their exponents."""
    values = np.random.default_rng(0).standard_normal(min(numel, _PATTERN_ELEMENTS), dtype=np.float32)
    halves = (values.view(np.uint32) >> 16).astype(np.uint16)
    return np.resize(halves, numel).view(np.uint8)


def _record(step: int, payload: np.ndarray[Any, np.dtype[np.uint8]]) -> bytearray:
    record = Record(step, "apply", 16, 1.0, b"\x01", (), "bf16", payload)
    memory = bytearray(payload.nbytes + 4096)
    return memory[: record.write_into(memoryview(memory), seal=False)]


if __name__ == "__main__":
    answer_all(answer)
