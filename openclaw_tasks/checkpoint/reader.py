"""Reading a run without claiming it: its history, bases and records, with up to m targets missing or damaged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from openclaw_tasks.checkpoint.lineage import BaseRef, Lineage

if TYPE_CHECKING:
    from openclaw_tasks.exact.record import Record
    from openclaw_tasks.storage.targets import TargetSet


class RunReader:
    """A run as the targets show it when opened. Close it (or use `with`) to drop its pin.

    Raises on opening: DataLossError (more is missing than redundancy covers, named), NotDurableError
    (too few targets answer). `exists` is False when enough targets answer that the run is not there.
    """

    run: str
    exists: bool
    warnings: list[str]

    def __init__(self, targets: TargetSet, run: str, *, pin: bool = False) -> None:
        raise NotImplementedError

    @property
    def lineage(self) -> Lineage:
        raise NotImplementedError

    @property
    def last_step(self) -> int:
        raise NotImplementedError

    @property
    def identity(self) -> Mapping[str, Any]:
        """The fixed identity of the last start."""
        raise NotImplementedError

    @property
    def job(self) -> Mapping[str, Any]:
        raise NotImplementedError

    def choose_base(self, step: int | None = None) -> BaseRef:
        """The newest base at or before `step` (default: the end) that is not quarantined. DataLossError if none."""
        raise NotImplementedError

    def read_base(self, base: BaseRef, *, fewest: bool = False) -> tuple[dict[str, bytes], dict[str, Any], dict[str, Any]]:
        """(objects, plain, manifest); `fewest`: from k stripes with as much parity among them as there is."""
        raise NotImplementedError

    def records(self, first: int, last: int, *, fewest: bool = False) -> Iterator[Record]:
        """Parsed records of steps first..last in order. DataLossError names the steps and group missing."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
