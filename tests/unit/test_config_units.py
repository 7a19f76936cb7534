"""Durations, sizes and rates."""

from __future__ import annotations

import math

import pytest

from openclaw_tasks.config.units import parse_duration_seconds, parse_rate, parse_size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30min", 1800),
        ("500ms", 0.5),
        (300, 300),
        ("10s", 10),
        ("2h", 7200),
        ("1d", 86400),
        (1.5, 1.5),
        ("5 s", 5),
    ],
)
def test_durations_parse_to_seconds(text: object, seconds: float) -> None:
    assert parse_duration_seconds(text) == seconds


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4GB", 4 * 10**9),
        ("1MiB", 2**20),
        (123, 123),
        ("1.5KB", 1500),
        ("64 kib", 65536),
        ("7", 7),
        ("2TiB", 2**41),
    ],
)
def test_sizes_parse_to_bytes(text: object, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "rate"), [("50MBps", 5e7), ("50MB/s", 5e7), ("1GiBps", 2.0**30), (100, 100.0), ("10Bps", 10.0)]
)
def test_rates_parse_to_bytes_per_second(text: object, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        "",
        "s",
        "10 parsecs",
        "-1s",
        -1,
        math.nan,
        math.inf,
        "1e3s",
        "١٠s",
        "11years",
        [1],
        "4000d",
        10**400,
    ],
)
def test_what_is_no_duration_is_refused_with_the_remedy(value: object) -> None:
    with pytest.raises(ValueError, match="write"):
        parse_duration_seconds(value)


@pytest.mark.parametrize("value", [None, False, "GB", "4 gigs", "1.0001B", 0.5, -4, "9999999999TB", {}, math.nan])
def test_what_is_no_size_is_refused_with_the_remedy(value: object) -> None:
    with pytest.raises(ValueError, match="write"):
        parse_size_bytes(value)


@pytest.mark.parametrize("value", ["fast", "50MB/min", "50Mbit", None, "50/s/s"])
def test_what_is_no_rate_is_refused_with_the_remedy(value: object) -> None:
    with pytest.raises(ValueError, match="write"):
        parse_rate(value)
