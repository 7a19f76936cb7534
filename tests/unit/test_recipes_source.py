"""The fingerprint of a recipe's source covers the user's files that it is made of, and no others."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from openclaw_tasks.errors import RecipeError
from openclaw_tasks.recipes.language import ByteLM
from openclaw_tasks.recipes.recipe import Recipe
from openclaw_tasks.recipes.source import recipe_source_fingerprint

RECIPE = """
{imports}
from openclaw_tasks.recipes.recipe import Recipe

class Mine(Recipe):
    def model(self): ...
    def dataset(self): ...
    def loss(self, model, batch): ...
"""


def fingerprint(folder: Path, module: str, monkeypatch: pytest.MonkeyPatch) -> str:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(folder)])
        before = set(sys.modules)
        importlib.invalidate_caches()
        recipe: Recipe = importlib.import_module(module).Mine()
        result = recipe_source_fingerprint(recipe)
        for name in set(sys.modules) - before:
            del sys.modules[name]
    for cache in folder.rglob("__pycache__"):
        for file in cache.iterdir():
            file.unlink()  # else a source of the same size and second is not read again
    return result


def test_neighbour_that_the_recipe_imports_counts_and_another_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_alone.py").write_text(RECIPE.format(imports="import os, net_alone"))
    (tmp_path / "net_alone.py").write_text("def f():\n    import deeper_alone\n")
    (tmp_path / "deeper_alone.py").write_text("A = 1\n")
    (tmp_path / "other_alone.py").write_text("A = 1\n")
    first = fingerprint(tmp_path, "mine_alone", monkeypatch)
    assert fingerprint(tmp_path, "mine_alone", monkeypatch) == first
    (tmp_path / "other_alone.py").write_text("A = 2\n")
    assert fingerprint(tmp_path, "mine_alone", monkeypatch) == first
    (tmp_path / "deeper_alone.py").write_text("A = 2\n")
    assert fingerprint(tmp_path, "mine_alone", monkeypatch) != first


@pytest.mark.parametrize("imports", ["from .. import net", "from ..net import A", "import pack_m.net"])
def test_module_of_the_same_package_counts_however_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imports: str
) -> None:
    inner = tmp_path / "pack_m" / "inner"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text("")
    (inner / "__init__.py").write_text("")
    (inner / "mine.py").write_text(RECIPE.format(imports=imports))
    (inner.parent / "net.py").write_text("A = 1\n")
    first = fingerprint(tmp_path, "pack_m.inner.mine", monkeypatch)
    (inner.parent / "net.py").write_text("A = 2\n")
    assert fingerprint(tmp_path, "pack_m.inner.mine", monkeypatch) != first


def test_fingerprint_does_not_depend_on_where_the_files_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "mine_moved.py").write_text(RECIPE.format(imports=""))
    first = fingerprint(tmp_path / "a", "mine_moved", monkeypatch)
    assert fingerprint(tmp_path / "b", "mine_moved", monkeypatch) == first


def test_shipped_recipe_has_a_fingerprint() -> None:
    assert len(recipe_source_fingerprint(ByteLM())) == 64


def test_recipe_without_a_source_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = {"__name__": "sys"}
    exec(RECIPE.format(imports=""), namespace)
    with pytest.raises(RecipeError, match="define the recipe's class in a file"):
        recipe_source_fingerprint(namespace["Mine"]())  # type: ignore[operator]
