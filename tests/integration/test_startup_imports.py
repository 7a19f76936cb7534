"""What is imported before anything is done: by name, since times differ between machines (see tests/bench/start.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

CONFIG = {"annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection", "yaml"}
CONFIG |= {"cython_runtime"}  # of which yaml's compiled part is made
COMMAND_LINE = {"annotated_doc", "click", "shellingham", "typer"}
OURS = {"openclaw_tasks"}
HEAVY = {"torch", "prefect", "distributed", "dask", "zfec"}

SCRIPT = """
import json, sys
before = set(sys.modules)
try:
    {statement}
except SystemExit:
    pass
print("\\n" + json.dumps(sorted(set(sys.modules) - before)))
"""


def imported(statement: str, words: Sequence[str] = (), home: Path | None = None) -> set[str]:
    """The modules that a statement imports in a fresh interpreter, with `words` as the command's."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(statement=statement), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=None if home is None else {"OPENCLAW_HOME": str(home)},
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def foreign(modules: set[str]) -> set[str]:
    """The libraries among them: neither Python's own nor parts of what stands above them by name."""
    names = {name.partition(".")[0] for name in modules}
    return {name for name in names if not name.startswith("_")} - sys.stdlib_module_names


def test_the_configuration_imports_what_reads_it_and_nothing_else() -> None:
    modules = imported("import openclaw_tasks.config")
    assert foreign(modules) <= CONFIG | OURS
    ours = {name for name in modules if name.startswith("openclaw_tasks.")}
    assert all(name.startswith(("openclaw_tasks.config", "openclaw_tasks.errors")) for name in ours)


def test_help_imports_the_command_line_and_nothing_else() -> None:
    """Not even the configuration: what a command needs, it imports itself."""
    modules = imported("from openclaw_tasks.cli.main import main; main()", ["--help"])
    assert foreign(modules) <= COMMAND_LINE | OURS
    ours = {name for name in modules if name.startswith("openclaw_tasks.")}
    assert ours == {f"openclaw_tasks.{name}" for name in ("cli", "cli.main", "errors", "interruption")}


@pytest.mark.parametrize(
    "words",
    [
        ["train", "nowhere.yaml"],
        ["train", "tiny", "--set", "steps=0"],
        ["train", "tiny", "--fault", "kill-rank:9@1"],
        ["verify", "nowhere"],
        ["export", "tiny", "--out", "/nowhere/weights"],
        ["runs"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_what_trains_nothing_waits_for_nothing_heavy(words: list[str], tmp_path: Path) -> None:
    modules = imported("from openclaw_tasks.cli.main import main; main()", words, tmp_path / "home")
    assert foreign(modules).isdisjoint(HEAVY)
    assert not (tmp_path / "home").exists()
