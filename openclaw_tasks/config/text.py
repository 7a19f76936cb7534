"""Values shown to people: one line, short, and no secret in them."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from typing import Final

# What stands between "//" and "@" in a URL: user, or user and password.
_USER_INFO: Final = re.compile(r"(?<=://)[^\s/@'\"]+@")
_SECRET_QUERY: Final = re.compile(r"(?i)([?&][^=&\s]*(?:key|secret|token|password|signature)[^=&\s]*=)[^&\s'\"]+")
_SHOWN_CHARACTERS: Final = 100
_SHOWN_OF_A_PATH: Final = 300


CREDENTIALS_REMEDY: Final = (
    "a URL must hold no user or password; take them out, and give credentials by reference "
    "(the environment or the profile that the storage's own client reads)"
)


def has_credentials(url: str) -> bool:
    """Whether `url` holds a user, or user and password, before its host."""
    return _USER_INFO.search(url) is not None


def redact(text: str) -> str:
    """`text` with the credentials of every URL in it replaced by `***`."""
    return _SECRET_QUERY.sub(r"\1***", _USER_INFO.sub("***@", text))


def show(value: object) -> str:
    """`value` as Python writes it, on one line, redacted, and cut when long."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    try:
        shown = redact(one_line(repr(value)))
    except (ValueError, RecursionError):  # Python refuses to print very long integers
        return f"a {type(value).__name__} too large to show"
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}..."


def show_path(path: str | os.PathLike[str]) -> str:
    """A path on one line, redacted; of one that is very long, both ends: the last part is the file's name."""
    shown = redact(_escaped(os.fspath(path)))
    if len(shown) <= _SHOWN_OF_A_PATH:
        return shown
    half = _SHOWN_OF_A_PATH // 2
    return f"{shown[:half]}...{shown[-half:]}"


def one_line(text: str) -> str:
    """`text` with line breaks and runs of space as single spaces, and anything unprintable escaped."""
    return _escaped(" ".join(text.split()))


def _escaped(text: str) -> str:
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def suggest(name: str, known: Iterable[str]) -> str:
    """'did you mean ...?' with the nearest of `known`, or 'known: ...' where none is near."""
    known = sorted(known)
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if nearest:
        return f"did you mean {nearest[0]!r}?"
    return f"known: {', '.join(known)}" if known else "none is known"
