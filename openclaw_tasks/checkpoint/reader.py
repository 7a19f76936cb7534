"""Reading a run without claiming it, with up to m targets missing or damaged: history, bases, records."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from openclaw_tasks.checkpoint import driver
from openclaw_tasks.checkpoint.bases import fetch_object
from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.documents import BaseManifest, Pin, Start
from openclaw_tasks.checkpoint.fetch import Fetched, fetch
from openclaw_tasks.checkpoint.history import History, group_name, read_history
from openclaw_tasks.checkpoint.holder import this_process
from openclaw_tasks.checkpoint.lineage import BaseRef, GroupRef, Lineage
from openclaw_tasks.checkpoint.pack import unpack_group
from openclaw_tasks.checkpoint.paths import StartName, parse_start_key
from openclaw_tasks.checkpoint.pins import drop_pin, pin_history, put_pin
from openclaw_tasks.checkpoint.run_documents import base_name, read_start_named
from openclaw_tasks.checkpoint.start import refuse_if_stuck
from openclaw_tasks.errors import DamagedError, DataLossError, NotDurableError

if TYPE_CHECKING:
    from openclaw_tasks.exact.record import Record
    from openclaw_tasks.storage.targets import TargetSet

PIN_RENEWAL_SECONDS = 10.0
_GROUPS_AHEAD = 2  # reading and checking one takes longer than applying it
_LOOKS = 5
_PAUSE_SECONDS = 0.3


class RunReader:
    """A run as the targets show it when opened. Close it (or use `with`) to drop its pin.

    pin: keep retention from deleting what this reader may ask for, for as long as it is open.
    deep_bytes: read every stripe on opening when all together have at most so many bytes, so that `warnings` names
    every damaged target, not only those whose stripes are needed.

    Raises on opening: DataLossError (more is missing than redundancy covers, named), NotDurableError (too few
    targets answer). `exists` is False when enough targets answer that the run is not there.
    """

    def __init__(
        self, targets: TargetSet, run: str, *, pin: bool = False, purpose: str = "read", deep_bytes: int = 0
    ) -> None:
        self.run = run
        self._targets = targets
        self._deep_bytes = deep_bytes
        self._history = self._look()
        self.exists = self._history.start is not None
        self._pin: _PinKeeper | None = None
        if pin and self.exists:
            self._pin = _PinKeeper(targets, self._code, self._new_pin(purpose))
            self._history = self._look(self._pin.pin)
        self.warnings = [self._with_url(note) for note in self._history.notes]
        self._warned: set[int] = set()
        self._noting = threading.Lock()  # groups are read by several threads
        self._passed_over: set[BaseRef] = set()

    @property
    def lineage(self) -> Lineage:
        """The history; empty when the run does not exist."""
        return self._history.lineage

    @property
    def last_step(self) -> int:
        """The last durable step."""
        return self._history.lineage.end_step

    @property
    def identity(self) -> Mapping[str, Any]:
        """The fixed identity of the last start."""
        return self._history.lineage.identity

    @property
    def job(self) -> Mapping[str, Any]:
        """The job of the last start, as resolved then."""
        return self._history.lineage.job

    def choose_base(self, step: int | None = None) -> BaseRef:
        """The newest base at or before `step` (default: the end), quarantined and passed over ones left out.

        Raises DataLossError if there is none.
        """
        limit = self.last_step if step is None else step
        usable = [ref for ref in self.lineage.bases if ref.step <= limit and ref not in self._passed_over]
        if not usable:
            known = sorted(ref.step for ref in self.lineage.bases)
            raise DataLossError(
                f"run {self.run!r} has no base at or before step {limit} (its bases are of steps {known}); "
                f"what lies before step {self.lineage.floor} is not kept"
            )
        return max(usable, key=lambda ref: (ref.step, ref.epoch))

    def pass_over(self, base: BaseRef, reason: str) -> None:
        """Do not offer `base` again: it failed in loading. The run's writer may quarantine it for everybody."""
        self._passed_over.add(base)
        self.warnings.append(f"{base_name(base).describe()} failed to load and is passed over: {reason}")

    def read_base(
        self, base: BaseRef, *, fewest: bool = False
    ) -> tuple[dict[str, memoryview], dict[str, Any], BaseManifest]:
        """(objects, plain, manifest); `fewest`: from k stripes with as much parity among them as there is.

        Raises DataLossError, DamagedError; NotDurableError when targets that do not answer would be needed.
        """
        manifest = self.manifest(base)
        objects: dict[str, memoryview] = {}
        for entry in manifest.objects:
            steps = fetch_object(self._code, manifest, entry, self._order(fewest))
            objects[entry.name] = driver.run(steps, self._targets)
        return objects, dict(manifest.plain), manifest

    def manifest(self, base: BaseRef) -> BaseManifest:
        """What the base's writer said of it. Raises DataLossError for a base that is not in the lineage."""
        for known in self._history.bases:
            if base_name(known.ref) == base_name(base):
                return known.manifest
        raise DataLossError(f"run {self.run!r}: {base_name(base).describe()} is not in its history")

    def identity_at(self, epoch: int, writer: str) -> Mapping[str, Any]:
        """The fixed identity of an earlier start; {} if its document is not there any more."""
        start: Start | None = driver.run(
            read_start_named(self.run, self._code, StartName(epoch, writer)), self._targets
        )
        return start.identity if start is not None else {}

    def starts(self) -> list[Start]:
        """The documents of the starts that the history comes from, oldest first, as far back as they are there."""
        found: list[Start] = []
        start = self._history.start
        while start is not None:
            found.append(start)
            name = parse_start_key(self.run, start.parent) if start.parent is not None else None
            start = None
            if name is not None:
                start = driver.run(read_start_named(self.run, self._code, name), self._targets)
        return found[::-1]

    def records(self, first: int, last: int, *, fewest: bool = False) -> Iterator[Record]:
        """Parsed records of steps first..last in order; the next groups are read while one is used.

        Raises DataLossError and DamagedError naming the steps and group; NotDurableError as `read_base`.
        """
        wanted = self._groups_of(first, last)
        order = self._order(fewest)
        with ThreadPoolExecutor(_GROUPS_AHEAD, "read-group") as pool:
            reading: deque[Future[list[Record]]] = deque()
            unread = iter(wanted)
            for _, until in wanted:
                for ref, _ in itertools.islice(unread, 1 + _GROUPS_AHEAD - len(reading)):
                    reading.append(pool.submit(self._read_group, ref, order))
                records = reading.popleft().result()
                yield from (record for record in records if first <= record.step <= min(until, last))

    def close(self) -> None:
        """Drop the pin."""
        if self._pin is not None:
            self._pin.close()
            self._pin = None

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _code(self) -> Code:
        return self._history.code

    def _look(self, pin: Pin | None = None) -> History:
        """Read the history. Without a claim it may change meanwhile and look torn: then look again."""
        num_targets = len(self._targets.urls)
        for look in range(_LOOKS):
            steps = (
                read_history(self.run, num_targets, deep_bytes=self._deep_bytes)
                if pin is None
                else pin_history(self._code, pin, deep_bytes=self._deep_bytes)
            )
            try:
                history = driver.run(steps, self._targets)
            except NotDurableError as error:
                raise self._too_few(error) from error
            if history.stuck is None:
                return history
            if look < _LOOKS - 1:
                time.sleep(_PAUSE_SECONDS)
        refuse_if_stuck(history)
        return history

    def _too_few(self, error: NotDurableError) -> Exception:
        """Targets that were absent already when opened are gone, not slow."""
        gone = len(self._targets.problems)
        if len(self._targets.urls) - gone >= Code(len(self._targets.urls), 0).read_quorum:
            return error
        problems = "; ".join(problem for _, problem in sorted(self._targets.problems.items()))
        return DataLossError(
            f"run {self.run!r}: {gone} of {len(self._targets.urls)} targets are missing, which is more than any "
            f"redundancy covers: {problems}"
        )

    def _new_pin(self, purpose: str) -> Pin:
        return Pin(
            run=self.run,
            id=secrets.token_hex(8),
            counter=0,
            bases=self.lineage.bases,
            first=self.lineage.floor + 1,
            purpose=purpose,
            process=this_process(),
        )

    def _groups_of(self, first: int, last: int) -> list[tuple[GroupRef, int]]:
        """The groups of steps first..last, each with the last of its steps that counts."""
        groups = self.lineage.groups
        found: list[tuple[GroupRef, int]] = []
        for number, ref in enumerate(groups):
            until = groups[number + 1].first - 1 if number + 1 < len(groups) else self.last_step
            if ref.first <= last and min(until, ref.last) >= first:
                found.append((ref, min(until, ref.last)))
        if first <= last and (not found or found[0][0].first > first or found[-1][1] < last):
            raise DataLossError(
                f"run {self.run!r}: records of steps {first} to {last} are not all kept; there are those from step "
                f"{self.lineage.floor + 1} to {self.last_step}"
            )
        return found

    def _read_group(self, ref: GroupRef, order: Sequence[int]) -> list[Record]:
        """All records of a group, with every digest on the way checked."""
        from openclaw_tasks.exact.record import Record

        name = group_name(ref)
        fetched = driver.run(fetch(self._code, self.run, name, ref.digest, order), self._targets)
        self._note_bad(name.describe(), fetched)
        previous = fetched.rebuilt.header.identity.previous_digest or ""
        if previous != ref.previous:
            raise DamagedError(f"run {self.run!r}: {name.describe()} follows another group than the history says")
        records: list[Record] = []
        for step, data in zip(range(ref.first, ref.last + 1), unpack_group(fetched.rebuilt.payload), strict=True):
            try:
                record = Record.parse(data)
            except DamagedError as error:
                raise DamagedError(f"run {self.run!r}: step {step} in {name.describe()}: {error}") from error
            if record.step != step:
                raise DamagedError(f"run {self.run!r}: {name.describe()} holds step {record.step} in place of {step}")
            records.append(record)
        return records

    def _note_bad(self, what: str, fetched: Fetched) -> None:
        """A line for each target that failed us, once."""
        with self._noting:
            for target, problem in sorted(fetched.rebuilt.bad.items()):
                if target not in self._warned:
                    self._warned.add(target)
                    self.warnings.append(self._with_url(f"target {target}: {what}: {problem}"))

    def _order(self, fewest: bool) -> list[int]:
        """Targets in the order to ask: data stripes first, or parity first; absent ones last."""
        absent = set(self._targets.problems)
        order = sorted(range(self._code.n), reverse=fewest)
        return [target for target in order if target not in absent] + sorted(absent)

    def _with_url(self, note: str) -> str:
        for index, url in enumerate(self._targets.urls):
            if note.startswith(f"target {index}: ") and url not in note:
                return note.replace(f"target {index}: ", f"target {index} ({url}): ", 1)
        return note


class _PinKeeper:
    """Renews a pin in a thread, so that retention sees that its reader lives."""

    def __init__(self, targets: TargetSet, code: Code, pin: Pin) -> None:
        self.pin = pin
        self._targets = targets
        self._code = code
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="pin", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop renewing and remove the pin."""
        self._ending.set()
        self._thread.join()
        driver.run(drop_pin(self._code, self.pin), self._targets, may_skip=self._code.n)

    def _renew(self) -> None:
        counter = 0
        while not self._ending.wait(PIN_RENEWAL_SECONDS):
            counter += 1
            renewed = self.pin.model_copy(update={"counter": counter})
            try:
                driver.run(put_pin(self._code, renewed), self._targets, may_skip=self._code.m)
            except NotDurableError:
                continue  # too few targets for now: the next renewal may reach them
