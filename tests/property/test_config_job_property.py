"""Whatever a job file holds, it loads or is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from bad_jobs import SOUND
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_tasks.config.faults import Fault, FaultKind, parse_fault
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.config.units import parse_duration_seconds, parse_rate, parse_size_bytes
from openclaw_tasks.errors import JobError

DOCUMENT: dict[str, Any] = {**SOUND, "global_batch": 16, "cluster": {"workers": 2, "host": "127.0.0.1"}}
KEYS = [(key,) for key in DOCUMENT] + [
    (section, key) for section in ("cluster", "store", "fault_tolerance") for key in DOCUMENT[section]
]

texts = st.text(max_size=12)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.integers(), inner, max_size=3),
    max_leaves=6,
)
yaml_pieces = st.sampled_from(
    [
        "run",
        "steps",
        "store",
        ": ",
        "\n",
        "\n  ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "&a ",
        "*a",
        "<<: ",
        "? ",
        "> ",
        "!!int ",
        "!!str ",
        "!!timestamp ",
        "!!python/none ",
        "!<x> ",
        "'",
        '"',
        "\\x",
        "\\U0011FFFF",
        "%YAML 1.1",
        "---",
        "...",
        "#",
        "~",
        "$X",
        "${",
        "1",
        ".inf",
        "0x",
        "1e9",
        "é",
        "\t",
        "\ufeff",
        "@",
        "`",
    ]
)


def check(path: Path | str, overrides: Any = ()) -> str | None:
    """None when it loads; else the one line that refuses it."""
    try:
        job = TrainJob.load(path, overrides)
    except JobError as error:
        message = str(error)
        assert message
        assert message.isprintable(), message
        assert len(message) < 4000
        return message
    assert TrainJob.from_json(job.to_json()) == job
    json.dumps(job.document(), allow_nan=False)
    return None


def refusal(parse: Callable[[Any], object], value: object, error_type: type[Exception]) -> str | None:
    try:
        parse(value)
    except error_type as error:
        return str(error)
    return None


@pytest.fixture(name="file", scope="module")
def _file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jobs") / "job.yaml"


def changed(key: tuple[str, ...], value: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(DOCUMENT))
    section = document
    for name in key[:-1]:
        section = section[name]
    section[key[-1]] = value
    return document


def test_the_unchanged_document_loads(file: Path) -> None:
    file.write_text(yaml.safe_dump(DOCUMENT))
    assert check(file) is None


@given(data=st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes_load_or_are_refused_in_one_line(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    assert check(file) is not None


@given(text=texts | st.lists(yaml_pieces, max_size=25).map("".join))
@settings(max_examples=300, deadline=None)
def test_any_text_loads_or_is_refused_in_one_line(file: Path, text: str) -> None:
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert check(file) is not None


@given(document=plain)
@settings(deadline=None)
def test_any_yaml_is_refused_in_one_line(file: Path, document: Any) -> None:
    file.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8", errors="surrogatepass")
    assert check(file) is not None


@given(key=st.sampled_from(KEYS), value=plain)
@settings(max_examples=300, deadline=None)
def test_any_value_at_any_key_loads_or_is_refused_naming_the_key(file: Path, key: tuple[str, ...], value: Any) -> None:
    file.write_text(yaml.safe_dump(changed(key, value)), encoding="utf-8")
    message = check(file)
    readable = "line " in (message or "")  # YAML that cannot be read is told by its line
    assert message is None or key[-1] in message or readable


@given(
    key=st.sampled_from([*KEYS, ("recipe_args", "width")]),
    text=texts | st.lists(yaml_pieces, max_size=6).map("".join),
)
@settings(max_examples=300, deadline=None)
def test_any_set_loads_or_is_refused_in_one_line(file: Path, key: tuple[str, ...], text: str) -> None:
    file.write_text(yaml.safe_dump(DOCUMENT))
    check(file, [f"{'.'.join(key)}={text}"])
    check(file, [text])


@given(key=st.sampled_from(KEYS), name=texts)
@settings(deadline=None)
def test_an_unknown_key_is_refused_naming_it(file: Path, key: tuple[str, ...], name: str) -> None:
    section = DOCUMENT if len(key) == 1 else DOCUMENT[key[0]]
    if name in section or name in ("folder", "address"):
        return
    file.write_text(yaml.safe_dump(changed((*key[:-1], name), 1)), encoding="utf-8")
    message = check(file)
    assert message is not None
    assert "unknown key" in message or "line " in message


@given(key=st.sampled_from(["run", "recipe", "steps", "global_batch"]))
@settings(deadline=None)
def test_a_key_given_twice_is_refused(file: Path, key: str) -> None:
    file.write_text(yaml.safe_dump(DOCUMENT) + f"{key}: 1\n")
    message = check(file)
    assert message is not None
    assert f"{key!r} is given twice" in message


@given(name=texts)
@settings(deadline=None)
def test_any_job_name_loads_or_is_refused_in_one_line(name: str) -> None:
    if name not in ("demo", "tiny"):
        assert check(name) is not None


@given(number=st.integers(0, 10**6), unit=st.sampled_from(["ms", "s", "min", "h"]))
@settings(deadline=None)
def test_whole_durations_are_exact(number: int, unit: str) -> None:
    if unit in ("min", "h"):
        number %= 1000
    expected = number * {"ms": 1e-3, "s": 1, "min": 60, "h": 3600}[unit]
    assert parse_duration_seconds(f"{number}{unit}") == expected


@given(number=st.integers(0, 2**20), unit=st.sampled_from(["B", "KB", "KiB", "MB", "MiB", "GB", "GiB"]))
@settings(deadline=None)
def test_whole_sizes_and_rates_are_exact(number: int, unit: str) -> None:
    power = {"K": 1, "M": 2, "G": 3}.get(unit[0], 0)
    expected = number * (1024 if "i" in unit else 1000) ** power
    assert parse_size_bytes(f"{number}{unit}") == expected
    assert parse_rate(f"{number}{unit}ps") == expected


@given(value=plain | texts)
@settings(deadline=None)
def test_units_refuse_in_one_line_what_they_cannot_read(value: object) -> None:
    for parse in (parse_duration_seconds, parse_size_bytes, parse_rate):
        message = refusal(parse, value, ValueError)
        assert message is None or message.isprintable()


@given(
    kind=st.sampled_from(["kill-rank", "stop-rank", "kill-agent", "delete-target", "kill-flow"]),
    target=st.integers(0, 10**6),
    step=st.integers(1, 10**9),
)
@settings(deadline=None)
def test_faults_write_what_they_read(kind: FaultKind, target: int, step: int) -> None:
    fault = Fault(kind, None if kind == "kill-flow" else target, step)
    assert parse_fault(fault.text()) == fault


@given(text=texts)
@settings(deadline=None)
def test_any_text_is_a_fault_or_refused_in_one_line(text: str) -> None:
    message = refusal(parse_fault, text, JobError)
    assert message is None or message.isprintable()
    assert message is not None or parse_fault(parse_fault(text).text()) == parse_fault(text)
