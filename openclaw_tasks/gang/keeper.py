"""Keeping one agent process alive at a place: the same code for a Dask worker and for a gang on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

_RESTART_SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0)
_SHORT_LIFE_SECONDS = 5.0
_END_SECONDS = 8.0


class AgentKeeper:
    """Starts an agent, and another when it dies; `close` ends it. The agent sees this process die by its pipe."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._closing = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep, name=f"keep-{config['name']}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the agent; returns when its process is gone. Bounded."""
        self._closing.set()
        with self._lock:
            process = self._process
        if process is not None:
            _close_input(process)
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join(_END_SECONDS)

    def _keep(self) -> None:
        short_lives = 0
        while not self._closing.is_set() and short_lives < len(_RESTART_SECONDS):
            begun = time.monotonic()
            with self._lock:
                if self._closing.is_set():
                    return
                self._process = _start_agent(self._config)
            status = self._process.wait()
            _close_input(self._process)
            if status == 0:
                return  # it was told to end
            short_lives = short_lives + 1 if time.monotonic() - begun < _SHORT_LIFE_SECONDS else 1
            self._closing.wait(_RESTART_SECONDS[min(short_lives, len(_RESTART_SECONDS)) - 1])


def _start_agent(config: dict[str, Any]) -> subprocess.Popen[bytes]:
    folder = Path(config["log_folder"])
    folder.mkdir(parents=True, exist_ok=True)
    # A log file, never our own streams: a child that holds the flow's output hides the flow's death.
    with (folder / f"agent-{config['name']}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "openclaw_tasks.gang.agent"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(config).encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        pass  # it died at once; the caller sees its status
    return process


def _close_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.close()
    except BrokenPipeError:
        pass
