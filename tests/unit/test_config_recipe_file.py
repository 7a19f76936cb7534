"""What can be told of a recipe's file without importing it; and what cannot is left to the import."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.config.recipe_file import check_recipe_file
from openclaw_tasks.errors import RecipeError


def job(folder: Path, recipe: str, **fields: object) -> TrainJob:
    document = {"run": "r", "recipe": recipe, "steps": 4, "segment_steps": 2, "global_batch": 8, **fields}
    return TrainJob.parse({**document, "folder": str(folder)})


def written(folder: Path, source: str) -> TrainJob:
    (folder / "its_recipe.py").write_text(source)
    return job(folder, "its_recipe:Mine")


@pytest.mark.parametrize(
    ("source", "naming"),
    [
        ("class Mine(\n", ["importing the recipe's module 'its_recipe' raised SyntaxError", "its_recipe.py, line 1"]),
        ("x = '\0'", ["importing the recipe's module 'its_recipe' raised SyntaxError"]),
        ("class Nine:\n    pass\n", ["its_recipe.py) has no class 'Mine'; did you mean 'Nine'?"]),
        ("import os\n", ["has no class 'Mine'; known: os"]),
        ("", ["has no class 'Mine'; none is known"]),
    ],
)
def test_slips_are_told_in_the_loaders_words(tmp_path: Path, source: str, naming: list[str]) -> None:
    with pytest.raises(RecipeError) as told:
        check_recipe_file(written(tmp_path, source))
    for part in naming:
        assert part in str(told.value)
    assert "\n" not in str(told.value)


def test_a_module_that_is_not_there_is_told_with_the_place_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=f"there is no module 'no_such_recipe'; put it into {tmp_path}"):
        check_recipe_file(job(tmp_path, "no_such_recipe:Mine"))


@pytest.mark.parametrize(
    "source",
    [
        "class Mine:\n    pass\n",
        "if True:\n    class Mine:\n        pass\n",
        "from elsewhere import Yours as Mine\n",
        "from elsewhere import *\n",
        "Mine = make()\n",
        "(Mine, other) = make()\n",
        "Mine: type = make()\n",
        "def __getattr__(name):\n    return 1\n",
        "globals()['Mine'] = 1\n",
        "exec('class Mine: pass')\n",
        "import sys\nsetattr(sys.modules[__name__], 'Mine', 1)\n",
    ],
)
def test_whatever_may_define_the_class_is_left_to_the_import(tmp_path: Path, source: str) -> None:
    check_recipe_file(written(tmp_path, source))


def test_nothing_is_imported_and_what_lies_elsewhere_is_not_looked_at(tmp_path: Path) -> None:
    check_recipe_file(written(tmp_path, "class Mine: pass\nraise SystemExit('imported')\n"))
    check_recipe_file(job(tmp_path, "package.that.is_not_there:Mine"))
    check_recipe_file(job(tmp_path, "no_such_recipe:Mine", cluster={"address": "tcp://elsewhere:8786", "workers": 2}))
    check_recipe_file(job(tmp_path, "openclaw_tasks.recipes.language:ByteLM"))
