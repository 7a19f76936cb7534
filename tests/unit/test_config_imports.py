"""Importing the configuration, or a name of the package, stays light."""

from __future__ import annotations

import subprocess
import sys

import pytest

import openclaw_tasks

HEAVY = ("torch", "numpy", "prefect", "distributed", "dask", "fsspec", "zfec", "safetensors")


@pytest.mark.parametrize(
    "statement",
    [
        "import openclaw_tasks",
        "import openclaw_tasks.config",
        "from openclaw_tasks import TrainJob; TrainJob.load('tiny')",
        "from openclaw_tasks import Tracker",
        "import openclaw_tasks.observe.pictures, openclaw_tasks.observe.logs, openclaw_tasks.observe.report",
    ],
)
def test_nothing_heavy_is_imported(statement: str) -> None:
    script = f"import sys; {statement}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_exactly_the_documented_names_are_exported() -> None:
    assert openclaw_tasks.__all__ == ["LossSum", "Recipe", "Tracker", "TrainJob", "train"]
    assert set(openclaw_tasks.__all__) <= set(dir(openclaw_tasks))
    with pytest.raises(AttributeError, match="no_such_name"):
        openclaw_tasks.no_such_name  # noqa: B018
