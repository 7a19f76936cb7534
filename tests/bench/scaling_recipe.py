"""A recipe of as many parameters as one likes whose own work is little: what is measured is ours."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from openclaw_tasks.recipes.recipe import LossSum, Recipe

FEATURES = 1024
LAYER_PARAMETERS = FEATURES * FEATURES


class Wide(Recipe):
    """Layers side by side over the same sample: a million parameters each, and a gradient in all of them."""

    def __init__(self, *, layers: int, features: int = FEATURES) -> None:
        self.layers = layers
        self.features = features

    def model(self) -> nn.Module:
        return nn.ModuleList(nn.Linear(self.features, self.features, bias=False) for _ in range(self.layers))

    def dataset(self) -> Dataset[tuple[Tensor, ...]]:
        return TensorDataset(torch.randn(64, self.features, generator=torch.Generator().manual_seed(0)))

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> LossSum:
        (x,) = batch
        assert isinstance(model, nn.ModuleList)
        outputs = [layer(x).square().sum() for layer in model]
        return LossSum(torch.stack(outputs).sum(), len(x))
