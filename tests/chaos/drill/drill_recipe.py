"""A small recipe with all that is hard to keep exact (dropout, batch statistics, moments), for drills.

The environment, which no bit depends on, makes it slow or lets it fail: DRILL_BRAKE names a file, and while it is
there each forward takes the seconds it holds; DRILL_POISON=WHAT:INDEX, where the sample INDEX raises or kills its
process ("raise", "die").
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from openclaw_tasks import LossSum, Recipe

SAMPLES = 640
FEATURES = 8


def brake() -> None:
    try:
        time.sleep(float(Path(os.environ["DRILL_BRAKE"]).read_text()))
    except (KeyError, FileNotFoundError):
        pass


class Points(Dataset[tuple[Tensor, Tensor, int]]):
    def __init__(self, text: str) -> None:
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
        self.x = torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(seed))
        self.y = self.x.square().sum(1, keepdim=True).log()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return self.x[index] + 0.01 * torch.randn(FEATURES), self.y[index], index


class Drill(Recipe):
    def __init__(self, *, data: str, width: int = 16) -> None:
        self.data = data
        self.width = width

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(FEATURES, self.width),
            nn.BatchNorm1d(self.width),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(self.width, 1),
        )

    def dataset(self) -> Dataset[tuple[Tensor, Tensor, int]]:
        return Points(Path(self.data).read_text())

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> LossSum:
        x, y, indexes = batch
        brake()
        what, _, index = os.environ.get("DRILL_POISON", "none:-1").partition(":")
        if int(index) in indexes.tolist():
            if what == "raise":
                raise ValueError(f"sample {index} is poison")
            os.kill(os.getpid(), signal.SIGKILL)
        return LossSum(nn.functional.mse_loss(model(x), y, reduction="sum"), len(y))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        points = Points(Path(self.data).read_text())
        was_training = model.training
        model.eval()
        with torch.no_grad():
            error = nn.functional.mse_loss(model(points.x), points.y).item()
        model.train(was_training)
        return {"error": error}
