"""What a signal ends has the signal's exit status, whatever a library makes of the interruption."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, sys, time
from openclaw_tasks.cli import main as cli

@cli.app.command()
def serialize(number: int) -> None:
    try:
        os.kill(os.getpid(), number)
        time.sleep(30)
    except BaseException as error:
        if {swallows}:
            raise ValueError("a library's own") from None
        raise

cli.main()
"""


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGINT, "openclaw: interrupted; the same command goes on where it was\n"),
        (signal.SIGTERM, "openclaw: told to end (SIGTERM); the same command goes on where it was\n"),
    ],
)
def test_a_signal_has_its_exit_status(number: signal.Signals, said: str, swallows: bool) -> None:
    words = [sys.executable, "-c", SCRIPT.format(swallows=swallows), "serialize", str(int(number))]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (128 + number, "", said)


def test_an_error_that_nobody_foresaw_keeps_its_traceback() -> None:
    words = [sys.executable, "-c", SCRIPT.format(swallows=True), "serialize", "0"]
    script = words[2].replace("time.sleep(30)", "raise OSError")
    ended = subprocess.run([*words[:2], script, *words[3:]], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ended.stderr.endswith("ValueError: a library's own\n")


SWALLOWING = """
import os, signal, sys
from openclaw_tasks import interruption

interruption.listen()
try:
    os.kill(os.getpid(), int(sys.argv[1]))
except BaseException:
    pass
try:
    interruption.raise_again()
except BaseException as error:
    print(type(error).__name__)
interruption.obey()
interruption.raise_again()
print(interruption.first_told())
"""


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "Terminated"), (0, None)]
)
def test_a_signal_that_was_swallowed_is_raised_again_until_it_is_obeyed(number: int, kind: str | None) -> None:
    words = [sys.executable, "-c", SWALLOWING, str(int(number))]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    told = [kind, str(int(number))] if kind is not None else ["None"]
    assert ended.stdout.split() == told
