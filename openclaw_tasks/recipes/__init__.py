"""The protocol users implement, and the recipes that ship."""

from __future__ import annotations

from openclaw_tasks.recipes.recipe import LossSum, Recipe

__all__ = ["LossSum", "Recipe"]
