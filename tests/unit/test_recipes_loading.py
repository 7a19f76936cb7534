"""Loading a recipe: every way it can fail is one line that names the remedy, and ends with status 2."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.errors import RecipeError
from openclaw_tasks.recipes.recipe import LossSum, Recipe, load_recipe

SOURCE = """
from torch import nn
from openclaw_tasks.recipes.recipe import LossSum, Recipe

class Base(Recipe):
    def __init__(self, *, width=2, **rest):
        super().__init__(**rest)
        self.width = width

    def model(self):
        return nn.Linear(self.width, 1)

    def dataset(self):
        return [0.0]

    def loss(self, model, batch):
        return LossSum(model(batch).sum(), 1)

class Deeper(Base):
    def __init__(self, *, depth, **rest):
        super().__init__(**rest)
        self.depth = depth

class Plain(Base):
    def __init__(self):
        super().__init__()

class Raises(Base):
    def __init__(self, *, width=2):
        raise ValueError("width is\\nnot to its taste")

class Unfinished(Recipe):
    def model(self):
        return nn.Linear(1, 1)

class Stranger:
    pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in sys.modules if name.startswith("loaded_recipe")]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "loaded_recipe.py").write_text(SOURCE)
    return tmp_path


def load(folder: Path | None, recipe: str, **recipe_args: Any) -> Recipe:
    job = SimpleNamespace(recipe=recipe, recipe_args=recipe_args, folder=None if folder is None else str(folder))
    return load_recipe(cast(TrainJob, job))


def refusal(folder: Path | None, recipe: str, **recipe_args: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        load(folder, recipe, **recipe_args)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_status == 2
    return message


def test_recipe_is_made_from_the_job_files_folder_with_its_arguments(folder: Path) -> None:
    recipe = load(folder, "loaded_recipe:Deeper", depth=3, width=5)
    assert (recipe.depth, recipe.width) == (3, 5)  # type: ignore[attr-defined]


def test_folder_is_appended_once_and_never_hides_an_installed_module(folder: Path) -> None:
    load(folder, "loaded_recipe:Base")
    load(folder, "loaded_recipe:Base")
    assert sys.path.index(str(folder)) == len(sys.path) - 1
    assert sys.path.count(str(folder)) == 1


def test_missing_module_names_the_folder_to_put_it_into(folder: Path) -> None:
    assert f"no module 'loaded_recipes'; put it into {folder}" in refusal(folder, "loaded_recipes:Base")


def test_missing_module_without_a_folder_names_pythonpath() -> None:
    assert "PYTHONPATH" in refusal(None, "loaded_recipes_nowhere:Base")


def test_missing_import_of_the_recipe_is_named_and_not_taken_for_the_recipe(folder: Path) -> None:
    (folder / "loaded_recipe_b.py").write_text("import not_installed_anywhere\n")
    message = refusal(folder, "loaded_recipe_b:Base")
    assert "'loaded_recipe_b' imports 'not_installed_anywhere'" in message


@pytest.mark.parametrize(
    ("source", "said"),
    [("1 / 0", "ZeroDivisionError"), ("def", "SyntaxError"), ("raise SystemExit(0)", "SystemExit: 0")],
)
def test_module_that_raises_while_imported_is_refused(folder: Path, source: str, said: str) -> None:
    (folder / "loaded_recipe_c.py").write_text(source)
    assert said in refusal(folder, "loaded_recipe_c:Base")


def test_missing_class_gets_the_nearest_name(folder: Path) -> None:
    assert "did you mean 'Deeper'?" in refusal(folder, "loaded_recipe:Deepr")


def test_class_missing_from_a_module_that_hides_the_users_names_the_file(folder: Path) -> None:
    message = refusal(folder, "json:Base")
    assert "json/__init__.py" in message
    assert "rename" in message


def test_class_that_is_no_recipe_is_told_to_derive(folder: Path) -> None:
    assert "class Stranger(Recipe)" in refusal(folder, "loaded_recipe:Stranger")


def test_recipe_lacking_methods_names_them(folder: Path) -> None:
    assert "lacks dataset, loss()" in refusal(folder, "loaded_recipe:Unfinished")


def test_unknown_argument_gets_the_nearest_of_the_whole_class_tree(folder: Path) -> None:
    message = refusal(folder, "loaded_recipe:Deeper", depth=1, widht=3)
    assert "Deeper takes no argument 'widht'; did you mean 'width'?" in message


def test_argument_of_a_recipe_that_takes_none_is_refused(folder: Path) -> None:
    assert "Plain takes no argument 'width'; it takes none" in refusal(folder, "loaded_recipe:Plain", width=3)


def test_missing_argument_is_named(folder: Path) -> None:
    assert "'depth'" in refusal(folder, "loaded_recipe:Deeper")


def test_constructor_that_raises_keeps_its_exception_as_the_cause(folder: Path) -> None:
    with pytest.raises(RecipeError, match="ValueError: width is not to its taste") as caught:
        load(folder, "loaded_recipe:Raises", width=1)
    assert isinstance(caught.value.__cause__, ValueError)


class Minimal(Recipe):
    def model(self) -> nn.Module:
        return nn.Linear(1, 1)

    def dataset(self) -> Any:
        return [torch.zeros(1)]

    def loss(self, model: nn.Module, batch: Any) -> LossSum:
        return LossSum(model(batch).sum(), len(batch))


def test_model_dataset_and_loss_are_enough() -> None:
    recipe = Minimal()
    optimizer = recipe.optimizer(list(recipe.model().parameters()))
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["lr"] == 3e-4
    assert optimizer.defaults["fused"]
    assert recipe.schedule(1000) == 1.0
    assert recipe.evaluate(recipe.model()) == {}
    assert recipe.collate([torch.zeros(1), torch.ones(1)]).shape == (2, 1)


def test_base_recipe_takes_no_arguments() -> None:
    with pytest.raises(RecipeError, match="Minimal takes no argument 'width'; it takes none"):
        Minimal(width=1)
