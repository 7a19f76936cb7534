"""Imports point down, and what must start quickly or stay small imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import openclaw_tasks

ROOT = Path(openclaw_tasks.__file__).parent.parent


def test_the_layers_contracts_hold() -> None:
    program = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"

    done = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (done.returncode, "0 broken" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        # The agent must not hold torch's memory beside its rank's, and a launcher imports it once for all.
        ("openclaw_tasks.gang.agent", ("torch", "prefect", "dask", "distributed")),
        ("openclaw_tasks.gang.keeper", ("torch", "prefect", "dask", "distributed", "numpy")),
        # Loaded in every Dask worker.
        ("openclaw_tasks.gang.worker_plugin", ("torch", "prefect", "pydantic")),
        ("openclaw_tasks.gang.zygote", ("torch", "numpy", "prefect", "dask", "distributed")),
        ("openclaw_tasks.gang.supervisor", ("torch", "prefect", "dask", "distributed")),
        ("openclaw_tasks.recovery.machine", ("torch", "prefect", "dask", "distributed", "numpy", "pydantic")),
    ],
)
def test_a_module_loads_nothing_heavy(module: str, heavy: tuple[str, ...]) -> None:
    program = f"import sys; import {module}; print([name for name in {heavy!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_no_pure_layer_does_any_io() -> None:
    """Recovery decides and does nothing: it knows no clock, file, socket, process or thread."""
    program = (
        "import sys; before = set(sys.modules); import openclaw_tasks.recovery.machine;"
        "print(sorted({'socket', 'time', 'subprocess', 'threading', 'random'} & (set(sys.modules) - before)))"
    )

    done = subprocess.run([sys.executable, "-S", "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
