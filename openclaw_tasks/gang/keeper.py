"""Keeping one agent process alive at a place: the same code for a Dask worker and for a gang on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

AGENT_VARIABLES: Final = {
    "PYTHONUNBUFFERED": "1",
    # Memory of a group or base that was put goes back at once. A threshold that is not fixed grows to 32 MiB with the
    # first blocks that are freed; from then on threads keep such blocks in heaps of their own, full of holes: an agent
    # of 10 million parameters held 540 MB at its peak, and 250 MB with it fixed, at no cost in time.
    "MALLOC_MMAP_THRESHOLD_": str(256 << 10),
}
_RESTART_SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0)
_SHORT_LIFE_SECONDS = 5.0
_END_SECONDS = 8.0


class AgentKeeper:
    """Starts an agent, and another when it dies; `close` ends it. The agent sees this process die by its pipe.

    An agent serves one gang after the other: its launcher, which is slow to start, stays.
    """

    def __init__(self, name: str, log_folder: Path, zygote_address: str | None) -> None:
        self.name = name
        self._log_folder = log_folder
        self._zygote = [] if zygote_address is None else [zygote_address]
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._config: dict[str, Any] | None = None
        self._process = self._start()
        self._thread = threading.Thread(target=self._keep, name=f"keep-{name}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The agent's process, or that of the last one if it has just died."""
        with self._lock:
            return self._process.pid

    @property
    def started_at(self) -> float:
        """When that process was started, on CLOCK_MONOTONIC."""
        with self._lock:
            return self._started_at

    def serve(self, config: dict[str, Any]) -> None:
        """The agent, and each that follows if it dies, joins the gang that `config` names."""
        with self._lock:
            self._config = {**config, "name": self.name}
            self._tell()

    def rest(self) -> None:
        """The gang has ended: an agent that follows joins none until told."""
        with self._lock:
            self._config = None

    def dismiss(self) -> None:
        """Tell the agent that its place is gone, without waiting for its end."""
        with self._lock:
            self._closing.set()
            _close_input(self._process)

    def close(self) -> None:
        """End the agent; returns when its process is gone. Bounded."""
        self.dismiss()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._thread.join(_END_SECONDS)

    def _keep(self) -> None:
        short_lives = 0
        while True:
            begun = time.monotonic()
            self._process.wait()
            _close_input(self._process)
            short_lives = short_lives + 1 if time.monotonic() - begun < _SHORT_LIFE_SECONDS else 1
            if short_lives > len(_RESTART_SECONDS) or self._closing.wait(_RESTART_SECONDS[short_lives - 1]):
                return
            with self._lock:
                if self._closing.is_set():
                    return
                self._process = self._start()
                self._tell()

    def _start(self) -> subprocess.Popen[bytes]:
        self._log_folder.mkdir(parents=True, exist_ok=True)
        # A log file, never our own streams: a child that holds the flow's output hides the flow's death.
        self._started_at = time.monotonic()
        with (self._log_folder / f"agent-{self.name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "openclaw_tasks.gang.agent", *self._zygote],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **AGENT_VARIABLES},
                start_new_session=True,
            )

    def _tell(self) -> None:
        if self._config is None:
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(self._config).encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass  # it has just died, and perhaps its input has been closed; the next one is told


def _close_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.close()
    except BrokenPipeError:
        pass
