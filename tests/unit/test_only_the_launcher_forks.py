"""fsspec/s3fs#914: a process forked from one with threads, filesystems or a CUDA context hangs or refuses to work."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import openclaw_tasks

ROOT = Path(openclaw_tasks.__file__).parent.parent

# Ways to a process that shares its parent's memory without exec, and what is only ever used together with one.
FORKS = {"fork", "forkpty", "posix_spawn", "posix_spawnp", "prctl"}
NAMES = {"preexec_fn", "set_start_method", "get_context", "ProcessPoolExecutor", "forkserver"}

ALLOWED = {
    # Single-threaded, without event loop, filesystem or CUDA context: asserted before each fork.
    ("openclaw_tasks/gang/zygote.py", "fork"),
    ("openclaw_tasks/gang/launcher.py", "fork"),
    # Its children die with it.
    ("openclaw_tasks/gang/launcher.py", "prctl"),
    # A script of its own, standard library only: detaches from whoever started it before it does anything else.
    ("openclaw_tasks/steps/server_keeper.py", "fork"),
    # The server dies with the keeper; after exec, before any import that matters.
    ("openclaw_tasks/steps/server_process.py", "prctl"),
    # Asks whether the caller is a child that imports the user's script; starts nothing.
    ("openclaw_tasks/api.py", "multiprocessing.current_process"),
    # Starts multiprocessing's helper (fork and exec) early, while SIGINT is not blocked yet; Dask would later.
    ("openclaw_tasks/gang/placing.py", "multiprocessing.resource_tracker"),
}


def found_in(source: str) -> Iterator[str]:
    """Names of the forbidden things that the code (not its comments or docstrings) touches."""
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name("multiprocessing"), attr=name):
                yield f"multiprocessing.{name}"
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in FORKS | NAMES:
                yield name
            case ast.Attribute(attr="multiprocessing"):
                yield "multiprocessing"
            case ast.Import(names=names):
                # `import multiprocessing` alone does nothing: its uses are found above.
                yield from (alias.name for alias in names if is_multiprocessing(alias.name) and has_use(alias))
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    whole = f"{module}.{alias.name}"
                    if is_multiprocessing(whole) or alias.name in FORKS | NAMES:
                        yield whole
            case ast.keyword(arg=str(name)) if name in NAMES:
                yield name
            case ast.Constant(value=str(text)) if text in NAMES and id(node) not in docstrings:
                yield text


def is_multiprocessing(name: str) -> bool:
    return "multiprocessing" in name.split(".")


def has_use(alias: ast.alias) -> bool:
    return alias.name != "multiprocessing" or alias.asname is not None


def test_nothing_but_the_zygote_and_the_launcher_forks() -> None:
    found = set()
    for folder in ("openclaw_tasks", "flows"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            found |= {(name, what) for what in found_in(path.read_text("utf-8"))}

    assert found == ALLOWED


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import os\nos.fork()", ["fork"]),
        ("from os import fork", ["os.fork"]),
        ("from pty import fork as f", ["pty.fork"]),
        ("import pty\npty.fork()", ["fork"]),
        ("import os\nos.posix_spawn('a', [], {})", ["posix_spawn"]),
        ("import multiprocessing\nmultiprocessing.Process()", ["multiprocessing.Process"]),
        ("import multiprocessing as mp", ["multiprocessing"]),
        ("import multiprocessing.pool", ["multiprocessing.pool"]),
        ("from multiprocessing import get_context", ["multiprocessing.get_context"]),
        ("import torch.multiprocessing", ["torch.multiprocessing"]),
        ("from torch import multiprocessing", ["torch.multiprocessing"]),
        ("import torch\ntorch.multiprocessing.spawn(f)", ["multiprocessing"]),
        ("from concurrent.futures import ProcessPoolExecutor", ["concurrent.futures.ProcessPoolExecutor"]),
        ("Popen(preexec_fn=f)", ["preexec_fn"]),
        ("context = 'forkserver'", ["forkserver"]),
        ("def f():\n    '''forkserver'''\n# os.fork()", []),
        ("import multiprocessing", []),
    ],
)
def test_the_search_finds_every_way_to_fork(source: str, what: list[str]) -> None:
    assert list(found_in(source)) == what
