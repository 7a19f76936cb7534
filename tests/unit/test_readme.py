"""The README says what is there: its tour, its job file, its recipe, its commands, its links."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from openclaw_tasks.cli.main import app
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.config.source import shipped_jobs
from openclaw_tasks.recipes.recipe import load_recipe

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def expected_tour() -> str:
    """One line a file, in the words of the file itself."""
    lines = []
    folders = sorted({path.parent for path in ROOT.glob("openclaw_tasks/**/*.py")} | {ROOT / "flows"})
    for folder in folders:
        entries = []
        for path in sorted(folder.glob("*.py")):
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
            if text is not None:
                entries.append(f"- `{path.name}`: {text.splitlines()[0]}")
        if entries:
            lines += [f"**{folder.relative_to(ROOT)}/**", "", *entries, ""]
    return "\n".join(lines).strip()


def test_the_tour_has_a_line_for_each_file_in_its_own_words() -> None:
    tour = README.split("<!-- tour -->")[1].strip()
    assert tour == expected_tour()


def test_the_job_file_shown_is_a_job(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "job.yaml").write_text(shown, encoding="utf-8")
    job = TrainJob.load(tmp_path / "job.yaml")
    assert (job.run, job.store.redundancy, len(job.store.targets)) == ("stdlib-lm", 2, 5)


def test_the_recipe_shown_can_be_loaded_and_is_short(tmp_path: Path) -> None:
    shown = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    assert len(shown.splitlines()) <= 30
    (tmp_path / "my_recipe.py").write_text(shown, encoding="utf-8")
    (tmp_path / "job.yaml").write_text(
        "{run: digits, recipe: 'my_recipe:Digits', steps: 4, segment_steps: 2, global_batch: 16}", encoding="utf-8"
    )
    recipe = load_recipe(TrainJob.load(tmp_path / "job.yaml"))
    batch = recipe.collate([recipe.dataset()[index] for index in range(4)])
    assert recipe.loss(recipe.model(), batch).items == 4


def test_every_command_is_in_the_table_and_no_other() -> None:
    shown = set(re.findall(r"^\| `openclaw (\w+)", README, re.MULTILINE))
    assert shown == {command.callback.__name__ for command in app.registered_commands if command.callback}


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:infra|openclaw_tasks)/[\w./-]+)`", README))))
def test_each_place_named_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_shipped_jobs_named_are_those_that_ship() -> None:
    assert all(f"`{name}`" in README for name in shipped_jobs())
