"""The wheel, as a user installs it: all that belongs inside is, and it trains from anywhere."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Started

ROOT = Path(__file__).parents[2]
PACKAGES = ("openclaw_tasks", "flows")
NO_SOURCE = shutil.ignore_patterns("__pycache__", "*.pyc")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the project's own backend, which pip fetches, from a copy: nothing is left in the working tree."""
    source = tmp_path_factory.mktemp("source")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=NO_SOURCE)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy2(ROOT / name, source)
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", out, source)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment in which the wheel was installed, and what it needs is at hand.

    The dependencies are this environment's own, lent by a path file: in a folder lent so, the path file of an
    editable install means nothing, so the working tree is not importable.
    """
    folder = tmp_path_factory.mktemp("user") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    site_packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site_packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run(*words: str | Path, folder: Path | None = None) -> str:
    done = subprocess.run(list(map(str, words)), cwd=folder, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_of_the_tree() -> Iterator[str]:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                yield path.relative_to(ROOT).as_posix()


def test_everything_is_inside_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as found:
        inside = {name for name in found.namelist() if ".dist-info/" not in name}
        (entry_points,) = [found.read(name).decode() for name in found.namelist() if name.endswith("entry_points.txt")]
    assert inside == set(files_of_the_tree())
    for name in ("py.typed", "jobs/demo.yaml", "jobs/tiny.yaml", "checkpoint/FORMAT.md"):
        assert f"openclaw_tasks/{name}" in inside
    assert "[console_scripts]\nopenclaw = openclaw_tasks.cli.main:main" in entry_points
    assert "[pytest11]\nopenclaw = openclaw_tasks.testing" in entry_points


def imported_modules() -> set[str]:
    """The first names of all that the packages import, wherever in a module."""
    found = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    found.add(node.module.partition(".")[0])
    return found


def name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")


def test_all_that_is_imported_is_declared() -> None:
    """By us, or by what we declare (Prefect's server is made of uvicorn): else an environment could lack it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {name_of(text) for text in project["dependencies"]} | {"pytest"}
    brought = [text for name in declared for text in importlib.metadata.requires(name) or []]
    certain = declared | {
        name_of(text) for text in brought if "extra ==" not in text or text.endswith('extra == "distributed"')
    }
    owners = importlib.metadata.packages_distributions()
    foreign = imported_modules() - sys.stdlib_module_names - set(PACKAGES)
    assert {name for name in foreign if not certain & set(map(name_of, owners.get(name, [])))} == set()


def test_the_installed_package_is_the_one_that_is_imported(python: Path, tmp_path: Path) -> None:
    told = run(
        python, "-c", "import openclaw_tasks, flows; print(openclaw_tasks.__file__, flows.__file__)", folder=tmp_path
    )
    for place in told.split():
        assert Path(place).is_relative_to(python.parents[1])


def test_the_fixture_is_there_for_a_users_tests(python: Path, tmp_path: Path) -> None:
    """Pytest itself is the user's; the plugin comes by its entry point."""
    told = run(python, "-m", "pytest", "--fixtures", "-q", folder=tmp_path)
    assert re.search(r"^openclaw_run -- .*openclaw_tasks/testing\.py:\d+$", told, re.MULTILINE), told


@pytest.mark.flow
def test_it_trains_tiny_from_an_unrelated_folder(python: Path, tmp_path: Path) -> None:
    """A first start of all: a fresh home, a fresh server."""
    home, folder = tmp_path / "home", tmp_path / "unrelated"
    folder.mkdir()
    command = (str(python.with_name("openclaw")),)
    with Started("train", "tiny", "--json", home=home, folder=folder, program=command) as training:
        ended = training.end(110)
        training.wait_gone(10)
    assert ended.status == 0, ended.err
    assert ended.document["final_step"] == 60
    assert ended.document["verified_steps"][-1] == 60
    assert sorted(path.name for path in (home / "runs" / "tiny").glob("t?")) == [f"t{index}" for index in range(5)]
    assert list(folder.iterdir()) == []
