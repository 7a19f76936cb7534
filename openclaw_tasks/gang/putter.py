"""The agent's storage work, off its event loop: groups and bases go to the targets in threads of their own."""

from __future__ import annotations

import os
import queue
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

from openclaw_tasks.checkpoint.lineage import BaseSpec, GroupSpec
from openclaw_tasks.checkpoint.writer import BaseResult, GroupResult, put_base, put_group
from openclaw_tasks.errors import FencedError, OpenClawError
from openclaw_tasks.exact.record import seal_record
from openclaw_tasks.gang.wire import Frame
from openclaw_tasks.storage.targets import open_targets
from openclaw_tasks.training.base_copy import BaseCopy

Targets = tuple[Sequence[str], float]  # URLs, deadline in seconds


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a put ended: with a result, or with an error of one line."""

    kind: Literal["group", "base"]
    spec: dict[str, Any]
    group: GroupResult | None = None
    base: BaseResult | None = None
    error: str | None = None
    fenced: bool = False
    missing: Mapping[int, str] = field(default_factory=dict)
    """Targets that could not be opened, and why."""

    def frame(self) -> Frame:
        """The outcome as the supervisor is told it."""
        frame: Frame = {
            "type": f"{self.kind}-done",
            "spec": self.spec,
            "error": self.error,
            "fenced": self.fenced,
        }
        result = self.group or self.base
        if result is not None:
            frame |= {
                "ref": result.ref.to_json(),
                "stored_bytes": result.stored_bytes,
                "acked": result.acked,
                "degraded": result.degraded,
                "missing": {str(index): why for index, why in self.missing.items()},
            }
        return frame


class Putter:
    """Runs puts; `fileno` becomes readable when outcomes wait."""

    def __init__(self) -> None:
        # A base is long and rare, groups are short and must not wait for it.
        self._groups = ThreadPoolExecutor(1, "put-group")
        self._bases = ThreadPoolExecutor(1, "put-base")
        self._done: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._in_flight = 0

    def fileno(self) -> int:
        return self._wake_read

    def close(self) -> None:
        """Finish what was asked for, then end the threads."""
        self._groups.shutdown()
        self._bases.shutdown()
        os.close(self._wake_read)
        os.close(self._wake_write)

    @property
    def is_busy(self) -> bool:
        """Whether a put has been asked for whose outcome has not been taken."""
        return self._in_flight > 0

    def put_group(self, targets: Targets, spec: dict[str, Any], records: Sequence[memoryview]) -> None:
        """Put records as the group that `spec` (a GroupSpec in JSON) names. They must stay valid until then."""

        def work() -> Outcome:
            for record in records:
                seal_record(record)
            opened = open_targets(targets[0], deadline_seconds=targets[1])
            result = put_group(opened, GroupSpec.from_json(spec), records)
            return Outcome("group", spec, group=result, missing=opened.missing())

        self._submit(self._groups, "group", spec, work)

    def put_base(self, targets: Targets, spec: dict[str, Any], copy: BaseCopy, facts: dict[str, Any]) -> None:
        """Put a copy of the state as the base that `spec` (a BaseSpec in JSON) names."""

        def work() -> Outcome:
            objects, plain = copy.unpack()
            opened = open_targets(targets[0], deadline_seconds=targets[1])
            result = put_base(opened, BaseSpec.from_json(spec), objects, plain, facts)
            return Outcome("base", spec, base=result, missing=opened.missing())

        self._submit(self._bases, "base", spec, work)

    def outcomes(self) -> list[Outcome]:
        """Those that have come since the last call."""
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            pass
        found = []
        while not self._done.empty():
            found.append(self._done.get())
        self._in_flight -= len(found)
        return found

    def _submit(
        self,
        pool: ThreadPoolExecutor,
        kind: Literal["group", "base"],
        spec: dict[str, Any],
        work: Callable[[], Outcome],
    ) -> None:
        def run() -> None:
            try:
                outcome = work()
            except OpenClawError as error:
                outcome = Outcome(kind, spec, error=str(error), fenced=isinstance(error, FencedError))
            except Exception as error:  # noqa: BLE001 - the thread's outermost loop: the supervisor must hear of any failure
                traceback.print_exc(file=sys.stderr)
                outcome = Outcome(kind, spec, error=f"{type(error).__name__}: {error}")
            self._done.put(outcome)
            os.write(self._wake_write, b"\0")

        self._in_flight += 1
        pool.submit(run)
