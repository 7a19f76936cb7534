"""Signals that tell this process to end: raised in its main thread, and raised again where that was swallowed.

What a signal's handler raises comes up wherever the main thread happens to be. A library may catch it there and go
on, and Python drops it in a finalizer or a callback. So the signal is kept, and who can obey it asks for it.
"""

from __future__ import annotations

import signal
import threading
from typing import NoReturn


class Terminated(BaseException):
    """SIGTERM came: end in order, as at Ctrl-C."""


_told: list[int] = []
_is_obeyed = False


def listen() -> None:
    """Hear SIGTERM, and SIGINT unless it is to be ignored, as in the background of a script."""
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def first_told() -> int | None:
    """The first signal that has come."""
    return _told[0] if _told else None


def raise_again() -> None:
    """Raise what has come and is not being obeyed. In the main thread only, where signals are."""
    if _told and not _is_obeyed and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt if _told[0] == signal.SIGINT else Terminated


def obey() -> None:
    """The run is ending: what has come need not be raised again."""
    global _is_obeyed
    _is_obeyed = True


def _terminate(number: int, frame: object) -> NoReturn:
    _told.append(number)
    signal.signal(number, signal.SIG_IGN)  # one is enough
    raise Terminated


def _interrupt(number: int, frame: object) -> NoReturn:
    _told.append(number)
    raise KeyboardInterrupt
