"""Durations, sizes and rates as people write them: "30min", "4GB", "50MBps"."""

from __future__ import annotations

import math
import re
from typing import Annotated, Final

from pydantic import BeforeValidator, Field, WithJsonSchema

_SECONDS: Final = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_BYTES: Final = {
    "": 1,
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}
_BYTES_LOWER: Final = {unit.lower(): factor for unit, factor in _BYTES.items()}
_QUANTITY: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]*)", re.ASCII)

# Longer waits overflow the timeouts of select and of threads; nobody means them.
_MAX_SECONDS: Final = 3650 * 86400.0
_MAX_BYTES: Final = 2**63 - 1

DURATION_REMEDY: Final = 'write seconds as a number, or "500ms", "10s", "30min", "2h", "1d"'
SIZE_REMEDY: Final = 'write bytes as a whole number, or "64KB", "16MiB", "4GB"'
RATE_REMEDY: Final = 'write bytes per second as a number, or "50MBps", "1GiBps"'


def parse_duration_seconds(value: object) -> float:
    """Seconds in `value`: a number of seconds, or text such as "500ms", "10s", "30min", "2h", "1d".

    Raises ValueError, with the remedy, for anything else, negative, not finite, or longer than ten years.
    """
    number, unit = _split(value, DURATION_REMEDY)
    if unit not in _SECONDS and unit != "":
        raise ValueError(f"unknown unit {unit!r} of time; {DURATION_REMEDY}")
    seconds = float(number) * _SECONDS.get(unit, 1.0)
    if seconds > _MAX_SECONDS:
        raise ValueError("longer than ten years; write a duration that can end")
    return seconds


def parse_size_bytes(value: object) -> int:
    """Bytes in `value`: a whole number of bytes, or text such as "64KB", "16MiB", "4GB".

    KB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB powers of 1024; case does not matter. Raises
    ValueError, with the remedy, for anything else, negative, or not a whole number of bytes.
    """
    number, unit = _split(value, SIZE_REMEDY)
    factor = _BYTES_LOWER.get(unit.lower())
    if factor is None:
        raise ValueError(f"unknown unit {unit!r} of size; {SIZE_REMEDY}")
    size_bytes = number * factor
    if size_bytes != int(size_bytes):
        raise ValueError(f"not a whole number of bytes; {SIZE_REMEDY}")
    if size_bytes > _MAX_BYTES:
        raise ValueError(f"more than 2**63 bytes; {SIZE_REMEDY}")
    return int(size_bytes)


def parse_rate(value: object) -> float:
    """Bytes per second in `value`: a number, or text such as "50MBps", "50MB/s", "1GiBps".

    Raises ValueError, with the remedy, for anything else.
    """
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str):
        size, cut, rest = text.partition("/")
        if cut and rest != "s":
            raise ValueError(f"unknown unit of rate in {text!r}; {RATE_REMEDY}")
        text = size if cut else text.removesuffix("ps")
    number, unit = _split(text, RATE_REMEDY)
    factor = _BYTES_LOWER.get(unit.lower())
    if factor is None:
        raise ValueError(f"unknown unit {unit!r} of rate; {RATE_REMEDY}")
    return float(number) * factor


def _split(value: object, remedy: str) -> tuple[int | float, str]:
    """A number that is finite and not negative, and its unit, "" where there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"neither a number nor text; {remedy}")  # noqa: TRY004 (pydantic collects ValueError)
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"not a number with a unit; {remedy}")
        digits, unit = match.groups()
        return (float(digits) if "." in digits else int(digits)), unit
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"not a finite number; {remedy}")
    if value < 0:
        raise ValueError(f"negative; {remedy}")
    if value > _MAX_BYTES:
        raise ValueError(f"too large; {remedy}")
    return value, ""


_NUMBER_OR_TEXT: Final = [{"type": "number", "minimum": 0}, {"type": "string"}]

Duration = Annotated[
    float,
    BeforeValidator(parse_duration_seconds),
    Field(gt=0),
    WithJsonSchema({"anyOf": _NUMBER_OR_TEXT, "description": DURATION_REMEDY}),
]
"""Seconds, more than 0."""

Size = Annotated[
    int,
    BeforeValidator(parse_size_bytes),
    Field(gt=0),
    WithJsonSchema({"anyOf": _NUMBER_OR_TEXT, "description": SIZE_REMEDY}),
]
"""Bytes, more than 0."""
