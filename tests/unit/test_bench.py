"""The frame of the benchmarks: what is shown, written and answered. They themselves are run by hand."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from bench import measures
from bench.__main__ import BENCHMARKS, main
from bench.measures import Measure, at_least, at_most, must_be, plain


@pytest.fixture(name="found")
def _found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Measure]:
    """What a benchmark of the test's own, under the name of a real one, finds."""
    found: list[Measure] = []
    fake = ModuleType("bench.size")
    fake.run = lambda short: found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bench.size", fake)
    monkeypatch.setattr(measures, "RESULTS", tmp_path / "RESULTS.md")
    (tmp_path / "RESULTS.md").write_text("# Benchmarks\n")
    monkeypatch.setenv("OPENCLAW_HOME", str(tmp_path))
    return found


@pytest.mark.parametrize("name", sorted(BENCHMARKS))
def test_every_benchmark_is_there(name: str) -> None:
    assert callable(importlib.import_module(f"bench.{name}").run)


def test_limits_hold_or_do_not() -> None:
    assert at_most("m", 0.3, 0.3, "s") == Measure("m", 0.3, "s", "at most 0.3", True)
    assert at_most("m", 0.31, 0.3).holds is False
    assert at_least("m", 6.75, 6.75).holds is True
    assert at_least("m", 6.7, 6.75).holds is False
    assert must_be("m", 19, 20).holds is False
    assert plain("m", 1).holds is None
    for not_known in (float("nan"),):
        assert at_most("m", not_known, 1.0).holds is False
        assert at_least("m", not_known, 1.0).holds is False


def test_the_table_is_shown_and_written_and_a_limit_that_fails_is_the_exit_status(
    found: list[Measure], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found += [plain("bytes", 1234567, "B"), at_most("share", 0.1, 0.12)]
    file = tmp_path / "found.json"
    assert main(["size", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "1,234,567" in out
    assert "holds" in out
    assert json.loads(file.read_text())[1] == {
        "measure": "share",
        "value": 0.1,
        "unit": "",
        "limit": "at most 0.12",
        "holds": True,
    }
    found.append(at_most("other share", 0.2, 0.12))
    assert main(["size"]) == 1
    assert "DOES NOT HOLD" in capsys.readouterr().out


def test_results_keep_the_last_table_of_each(found: list[Measure]) -> None:
    for value in (1, 2):
        found[:] = [plain("bytes", value, "B")]
        assert main(["size", "--record"]) == 0
    measures.record("start", [plain("seconds", 3.0, "s")])
    text = measures.RESULTS.read_text()
    assert text.startswith("# Benchmarks\n\n<!-- size -->\n## size\n")
    assert text.count("| bytes |") == 1
    assert "| bytes | 2 B |" in text
    assert "| seconds | 3 s |" in text


@pytest.mark.parametrize(
    "words", [[], ["sise"], ["size", "--json", "/nowhere/x.json"], ["size", "--record", "--short"]]
)
def test_what_cannot_be_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err
