"""Readers with a pin: the product's generators, put together the way they do."""

from __future__ import annotations

from openclaw_tasks.checkpoint.documents import Pin
from openclaw_tasks.checkpoint.fetch import fetch
from openclaw_tasks.checkpoint.history import History, group_name, read_history
from openclaw_tasks.checkpoint.operations import (
    Pause,
    Steps,
)
from openclaw_tasks.checkpoint.pins import drop_pin, pin_history
from openclaw_tasks.errors import (
    DataLossError,
    NotDurableError,
)
from simulation.cast import PROCESS, Cast
from simulation.world import RUN, Violation


class Reader:
    """Reads a run without a claim, with or without a pin."""

    def __init__(self, cast: Cast, name: str) -> None:
        self.cast = cast
        self.name = name
        self.pin = name

    def live(self) -> Steps[None]:
        """Read it all some times over."""
        for number in range(self.cast.world.rng.randint(1, 4)):
            yield from self.read(f"{self.name}x{number}")
            for _ in range(self.cast.world.rng.randint(1, 200)):
                yield [Pause(1)]

    def read(self, name: str) -> Steps[None]:
        code, oracle = self.cast.world.code, self.cast.oracle
        self.pin = name
        pin = Pin(run=RUN, id=name, counter=0, bases=(), first=0, purpose="", process=PROCESS)
        try:
            first_look = yield from read_history(RUN, code.n, code, deep_bytes=0)
            pin = replace_pin(pin, first_look)
            promised = dict(oracle.promised)
            cuts = len(oracle.cuts)
            history = yield from pin_history(code, pin, deep_bytes=0)
        except NotDurableError:
            self.cast.dead_pins.add(name)
            return
        if history.start is None or history.stuck is not None:
            # Without a claim the listing is not of one moment, so this may pass: a reader looks again.
            self.cast.dead_pins.add(name)
            return
        if len(oracle.cuts) == cuts:
            oracle.check_lineage(history.lineage, promised, f"reader {name}")
        oracle.pinned[name] = history.lineage.floor + 1
        oracle.readings += 1
        try:
            yield from read_everything(self.cast, history, patience=self.cast.world.rng.choice((0, 30)))
        except NotDurableError:
            pass
        except DataLossError as error:
            oracle.check_loss(str(error))
        oracle.pinned.pop(name, None)
        self.cast.dead_pins.add(name)
        yield from drop_pin(code, pin)

    def die(self) -> None:
        self.cast.oracle.pinned.pop(self.pin, None)
        self.cast.dead_pins.add(self.pin)


def replace_pin(pin: Pin, history: History) -> Pin:
    return Pin(**{**pin.model_dump(), "process": pin.process, "first": history.lineage.floor + 1})


def read_everything(cast: Cast, history: History, patience: int = 0) -> Steps[None]:
    """All bases and groups of the history, each compared with what was put; `patience`: how slowly."""
    code = cast.world.code
    for base in history.bases:
        for entry in base.manifest.objects:
            for _ in range(patience):
                yield [Pause(1)]
            fetched = yield from fetch(code, RUN, base.manifest.object_name(entry), entry.payload_digest, range(code.n))
            if fetched.rebuilt.payload != f"{entry.name}:{base.ref.step}".encode() * 3:
                raise Violation(f"{base.manifest.key}: other bytes")
    for ref in history.lineage.groups:
        if ref.last <= history.lineage.floor:
            continue
        for _ in range(patience):
            yield [Pause(1)]
        fetched = yield from fetch(code, RUN, group_name(ref), ref.digest, range(code.n))
        if fetched.rebuilt.payload != repr(sorted(cast.oracle.payloads[ref.digest].items())).encode():
            raise Violation(f"{ref}: other bytes")
