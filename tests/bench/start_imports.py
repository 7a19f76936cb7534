"""How long it takes until the configuration can be used, and until `openclaw --help` has answered."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.measures import Measure, at_most, median, plain, spread

REPEATS = 7
CONFIG_SECONDS = 0.3
HELP_SECONDS = 0.5


def measures(repeats: int = REPEATS) -> list[Measure]:
    """Medians over fresh processes, the interpreter's own start included; that alone beside them."""
    openclaw = str(Path(sys.executable).with_name("openclaw"))
    bare = _seconds([sys.executable, "-c", "pass"], repeats)
    config = _seconds([sys.executable, "-c", "import openclaw_tasks.config"], repeats)
    helped = _seconds([openclaw, "--help"], repeats)
    return [
        plain("a Python that does nothing", median(bare), "s"),
        at_most("import openclaw_tasks.config", median(config), CONFIG_SECONDS, "s"),
        *spread("import openclaw_tasks.config", config, "s"),
        at_most("openclaw --help", median(helped), HELP_SECONDS, "s"),
        *spread("openclaw --help", helped, "s"),
    ]


def _seconds(words: Sequence[str], repeats: int) -> list[float]:
    """Of each run after a first one, which reads the files into the page cache and compiles what is new."""
    found = []
    for _ in range(repeats + 1):
        begun = time.perf_counter()
        subprocess.run(words, stdout=subprocess.DEVNULL, check=True, timeout=60)
        found.append(time.perf_counter() - begun)
    return found[1:]
