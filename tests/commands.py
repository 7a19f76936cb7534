"""Runs `openclaw` as a user does: a process of its own, in a terminal's process group, watched from outside."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from openclaw_tasks.observe.events import read_events

T = TypeVar("T")

OPENCLAW: Final = (str(Path(sys.executable).with_name("openclaw")),)
MODULE: Final = (sys.executable, "-m", "openclaw_tasks.cli.main")
MARK: Final = "OPENCLAW_COMMAND_ID"
PATIENCE_SECONDS: Final = 90.0

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The line that says why it ended. Fails if that is not one line, the last."""
        lines = [line for line in self.err.splitlines() if line.startswith("openclaw: ")]
        assert len(lines) == 1, self.err
        assert self.err.splitlines()[-1] == lines[0], self.err
        return lines[0].removeprefix("openclaw: ")

    @property
    def document(self) -> Any:
        """What stands on its standard output, as JSON."""
        return json.loads(self.out)


class Started:
    """A command that may run. All processes that come of it carry its mark, whoever their parent is."""

    def __init__(
        self,
        *words: str | os.PathLike[str],
        home: Path,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = OPENCLAW,
    ) -> None:
        self.home = home
        self.mark = uuid.uuid4().hex
        base = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "OPENCLAW_HOME"))}
        # Not this user's own home: his Prefect profile may name a server.
        ours = {"OPENCLAW_HOME": str(home), "HOME": str(home), MARK: self.mark}
        outputs = home.with_name(f"{home.name}-outputs")
        outputs.mkdir(exist_ok=True)
        self._files = [outputs / f"{next(_numbers)}.{name}" for name in ("out", "err")]
        with self._files[0].open("wb") as out, self._files[1].open("wb") as err:
            self.process = subprocess.Popen(
                [*program, *map(os.fspath, words)],
                cwd=folder or outputs,
                env={**base, **ours, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def end(self, seconds: float = PATIENCE_SECONDS) -> Ended:
        """Wait for its end."""
        status = self.process.wait(seconds)
        out, err = (file.read_text() for file in self._files)
        return Ended(status if status >= 0 else 128 - status, out, err)

    @property
    def out(self) -> str:
        """What it has said on standard output until now."""
        return self._files[0].read_text()

    @property
    def err(self) -> str:
        """What it has said on standard error until now."""
        return self._files[1].read_text()

    def pids(self) -> list[int]:
        """Every living process that came of it, itself first."""
        wanted = f"{MARK}={self.mark}".encode()
        return [pid for pid in _all_pids() if wanted in _read(pid, "environ").split(b"\0")]

    def pids_of(self, *words: str) -> list[int]:
        """Those of its processes whose command line holds one of `words`."""
        return [pid for pid in self.pids() if any(word.encode() in _read(pid, "cmdline") for word in words)]

    def wait_for(self, claim: Callable[[], T], what: str, seconds: float = PATIENCE_SECONDS) -> T:
        """Wait until `claim` gives something true; fails when the command ends before."""
        deadline = time.monotonic() + seconds
        while not (found := claim()):
            over = self.process.poll() is not None
            if (over and not claim()) or time.monotonic() > deadline:
                raise AssertionError(f"no {what}; status {self.process.returncode}\n{self.err}")
            time.sleep(0.02)
        return found

    def wait_for_step(self, run: str, step: int, attempt: int = 1) -> None:
        """Wait until `step` of `run` is done in its start number `attempt`."""

        def is_done() -> bool:
            steps = events_of(self.home, run, "step")
            return any(event["step"] >= step and event["attempt"] == attempt for event in steps)

        self.wait_for(is_done, f"step {step} of {run}")

    def wait_gone(self, seconds: float) -> None:
        """Every process that came of it is gone within `seconds`, or this fails naming those that live."""
        deadline = time.monotonic() + seconds
        while living := self.pids():
            assert time.monotonic() < deadline, [_read(pid, "cmdline").replace(b"\0", b" ") for pid in living]
            time.sleep(0.02)


def openclaw(*words: str | os.PathLike[str], home: Path, seconds: float = PATIENCE_SECONDS, **how: Any) -> Ended:
    """Run a command to its end. `how` as `Started` takes it."""
    with Started(*words, home=home, **how) as command:
        return command.end(seconds)


def events_of(home: Path, run: str, *kinds: str) -> list[dict[str, Any]]:
    """The events of a run (of `kinds`), oldest first."""
    events = read_events(run, path=home / "runs" / run / "events.jsonl")
    return [event for event in events if not kinds or event["kind"] in kinds]


def _all_pids() -> list[int]:
    return sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # ended meanwhile, or not ours to read
        return b""
