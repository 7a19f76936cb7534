"""OpenClaw: training that survives its machines.

The names below load on first use, so that importing the package, or its configuration, stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from openclaw_tasks.api import train
    from openclaw_tasks.config.job import TrainJob
    from openclaw_tasks.observe.tracker import Tracker
    from openclaw_tasks.recipes.recipe import LossSum, Recipe

__all__ = ["LossSum", "Recipe", "Tracker", "TrainJob", "train"]

_MODULES: Final = {
    "LossSum": "openclaw_tasks.recipes.recipe",
    "Recipe": "openclaw_tasks.recipes.recipe",
    "Tracker": "openclaw_tasks.observe.tracker",
    "TrainJob": "openclaw_tasks.config.job",
    "train": "openclaw_tasks.api",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
