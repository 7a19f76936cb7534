"""Which source files a recipe is made of, and their digest.

The files are found by reading import statements, not by looking at what happens to be loaded, so that a rank
that has run for hours and a newcomer get the same answer. Imports made from strings are not seen.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from openclaw_tasks.errors import RecipeError
from openclaw_tasks.recipes.recipe import Recipe

_OURS = "openclaw_tasks.recipes"


def recipe_source_fingerprint(recipe: Recipe) -> str:
    """SHA-256 (hex) over the names and bytes of the recipe's source files.

    They are the file of its class, and what that imports of the same top-level package, or, for a module
    outside any package, of the same folder. Installed libraries are not among them.
    """
    name = type(recipe).__module__
    module = sys.modules[name]
    if not getattr(module, "__file__", None):
        raise RecipeError(f"recipe: module {name!r} has no source file; define the recipe's class in a file")
    hasher = hashlib.sha256()
    for source_name, path in sorted(_closure(name, Path(str(module.__file__)).resolve()).items()):
        data = path.read_bytes()
        hasher.update(f"{source_name}\0{len(data)}\0".encode())
        hasher.update(data)
    return hasher.hexdigest()


def _closure(name: str, path: Path) -> dict[str, Path]:
    """The recipe's module and all it imports of its own kin, by module name."""
    is_package = path.name == "__init__.py"
    root = path.parents[name.count(".") + is_package]
    found = {name: path}
    pending = [name]
    while pending:
        current = pending.pop()
        for imported in _imports(current, found[current]):
            if imported in found or not _is_kin(imported, name, root):
                continue
            source = _source_of(imported, root)
            if source is not None:
                found[imported] = source
                pending.append(imported)
    return found


def _imports(name: str, path: Path) -> Iterator[str]:
    """Absolute names that the file may import: packages on the way, modules, and names imported from them."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes(), filename=str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
            yield from _with_parents(base)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    yield from (".".join(parts[: i + 1]) for i in range(len(parts)))


def _is_kin(imported: str, recipe_module: str, root: Path) -> bool:
    if f"{recipe_module}.".startswith(f"{_OURS}."):
        return f"{imported}.".startswith(f"{_OURS}.")
    package, separator, _ = recipe_module.partition(".")
    if separator:
        return imported.partition(".")[0] == package
    # A lone module: its neighbours count, unless it lies among installed libraries.
    return root not in _libraries()


@functools.cache
def _libraries() -> frozenset[Path]:
    """Folders of installed libraries; asked for at each import of a recipe, while a newcomer is waited for."""
    return frozenset(Path(path).resolve() for path in sysconfig.get_paths().values())


def _source_of(name: str, root: Path) -> Path | None:
    stem = root.joinpath(*name.split("."))
    for candidate in (stem.with_name(f"{stem.name}.py"), stem / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None
