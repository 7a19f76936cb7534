"""Looking at a recipe's file without importing it, so that slips are told before anything starts."""

from __future__ import annotations

import ast
import importlib.machinery
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.config.text import one_line, suggest
from openclaw_tasks.errors import RecipeError


def check_recipe_file(job: TrainJob) -> None:
    """Raise RecipeError for a module that is not there or is no Python, and for a class that its file cannot have.

    Only what is certain: a package's submodules are not looked for, and names may come from where one does not see
    them. On an existing cluster the recipe is what the workers find.
    """
    name, _, class_name = job.recipe.partition(":")
    if job.cluster.address is not None or "." in name or name in sys.modules:
        return
    spec = importlib.machinery.PathFinder.find_spec(name, [*sys.path, *([job.folder] if job.folder else [])])
    if spec is None:
        if name not in sys.builtin_module_names and all(
            finder.find_spec(name, None) is None for finder in sys.meta_path
        ):
            raise no_such_module(name, job.folder)
        return
    if not isinstance(spec.loader, importlib.machinery.SourceFileLoader) or spec.origin is None:
        return
    names = _names_in(name, Path(spec.origin))
    if names is not None and class_name not in names:
        raise no_such_class(f"module {name!r} ({spec.origin})", class_name, suggest(class_name, names))


def no_such_module(name: str, folder: str | None) -> RecipeError:
    places = f"put it into {folder}" if folder else "put its folder on PYTHONPATH"
    return RecipeError(f"recipe: there is no module {name!r}; {places}, install it, or correct the recipe's name")


def no_such_class(where: str, name: str, hint: str) -> RecipeError:
    return RecipeError(f"recipe: {where} has no class {name!r}; {hint}")


def _names_in(module: str, file: Path) -> set[str] | None:
    """The names of classes and other things that a file defines; None if it may define more than one can see."""
    try:
        with warnings.catch_warnings(action="ignore"):  # they are told when it is imported
            tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        raise RecipeError(
            f"importing the recipe's module {module!r} raised {type(error).__name__}: {one_line(str(error))}; "
            "mend it there"
        ) from error
    except OSError:
        return None
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(names=[ast.alias(name="*")]) | ast.Name(id="globals" | "exec" | "setattr"):
                return None
            case ast.FunctionDef(name="__getattr__"):
                return None
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Import() | ast.ImportFrom():
                names.update(_imported(node))
    return names


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    for alias in node.names:
        yield alias.asname or alias.name.partition(".")[0]
