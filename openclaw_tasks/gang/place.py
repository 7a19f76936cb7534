"""The place that an agent was started for, as it sees it: its standard input."""

from __future__ import annotations

import json
import os
import sys
from typing import Any


class Place:
    """The agent's standard input: a line of JSON for each gang to serve, and its end when the place is gone."""

    def __init__(self) -> None:
        self._pending = b""

    def fileno(self) -> int:
        return sys.stdin.fileno()

    def next_config(self) -> dict[str, Any] | None:
        """Wait for the next gang; None when the place is gone."""
        while b"\n" not in self._pending:
            if self.is_lost():
                return None
        line, _, self._pending = self._pending.partition(b"\n")
        config: dict[str, Any] = json.loads(line)
        return config

    def is_lost(self) -> bool:
        """Take what is there to read; whether that was the end."""
        data = os.read(self.fileno(), 65536)
        self._pending += data
        return not data
