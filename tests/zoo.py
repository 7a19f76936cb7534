"""Small recipes for all tests, importable as `zoo`; a step of any takes some milliseconds.

`job` makes a job of one of them. Ranks import this file through the job's folder.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import SGD, Adafactor, AdamW, Optimizer
from torch.utils.data import Dataset

from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.recipes.recipe import LossSum, Recipe

FEATURES, CLASSES = 8, 4

OPTIMIZERS = ("adamw", "sgd", "adafactor")

BITLESS = ("pause_seconds", "crawl_while", "trace")
"""Arguments of recipes that change no bit of any step."""
_CRAWL_SECONDS = 0.04


def job(recipe: str = "Tiny", **keys: Any) -> TrainJob:
    """A job of 12 steps of 16 samples in 8 shards; `keys` replace or add top-level keys."""
    document = {
        "run": f"zoo-{recipe.lower()}",
        "recipe": f"zoo:{recipe}",
        "folder": str(Path(__file__).parent),
        "seed": 7,
        "steps": 12,
        "segment_steps": 4,
        "global_batch": 16,
        "logical_shards": 8,
        "store": {"targets": ["file:///nowhere/t0"], "redundancy": 0},
    }
    return TrainJob.model_validate({**document, **keys})


class Sample(NamedTuple):
    """Also a batch of them. `index` tells which samples of the dataset they are."""

    index: Tensor
    features: Tensor
    label: Tensor


class Blobs(Dataset[Sample]):
    """Points around one centre a class; with `augmented`, each read adds noise of all three generators."""

    def __init__(self, samples: int, augmented: bool = False) -> None:
        generator = torch.Generator().manual_seed(1)
        self.labels = torch.arange(samples) % CLASSES
        centres = torch.randn(CLASSES, FEATURES, generator=generator)
        self.features = centres[self.labels] + 0.5 * torch.randn(samples, FEATURES, generator=generator)
        self.augmented = augmented

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        features = self.features[index]
        if self.augmented:
            noise = torch.randn(FEATURES) + torch.from_numpy(np.random.randn(FEATURES)).float()
            features = features * random.uniform(0.9, 1.1) + 0.05 * noise
        return Sample(torch.tensor(index), features, self.labels[index])


class Tiny(Recipe):
    """A classifier with one hidden layer; what the others are made of.

    `pause_seconds`: sleep in each shard, for tests that need time to strike. `crawl_while`: sleep much longer in
    each as long as this file exists, for tests that wait for something to happen while training goes on.
    """

    augmented = False

    def __init__(
        self,
        *,
        width: int = 16,
        samples: int = 48,
        optimizer: str = "adamw",
        lr: float = 0.01,
        pause_seconds: float = 0.0,
        crawl_while: str | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(**rest)
        self.width, self.samples = width, samples
        self.optimizer_name, self.lr = optimizer, lr
        self.pause_seconds = pause_seconds
        self.crawl_while = None if crawl_while is None else Path(crawl_while)

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(FEATURES, self.width),
            nn.LayerNorm(self.width),
            nn.ReLU(),
            nn.Linear(self.width, CLASSES),
        )

    def dataset(self) -> Dataset[Any]:
        return Blobs(self.samples, self.augmented)

    def loss(self, model: nn.Module, batch: Any) -> LossSum:
        is_crawling = self.crawl_while is not None and self.crawl_while.exists()
        time.sleep(_CRAWL_SECONDS if is_crawling else self.pause_seconds)
        return LossSum(F.cross_entropy(model(batch.features), batch.label, reduction="sum"), len(batch.label))

    def optimizer(self, params: Sequence[nn.Parameter]) -> Optimizer:
        if self.optimizer_name == "sgd":
            return SGD(params, lr=self.lr, momentum=0.9, weight_decay=0.01)
        if self.optimizer_name == "adafactor":
            return Adafactor(params, lr=self.lr, weight_decay=0.01)
        return AdamW(params, lr=self.lr, weight_decay=0.01, fused=True)

    def schedule(self, applied: int) -> float:
        return min(1.0, (applied + 1) / 5) * 0.98**applied

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        data = Blobs(self.samples)
        mode = model.training
        with torch.no_grad():
            right = (model.eval()(data.features).argmax(dim=1) == data.labels).float().mean().item()
        model.train(mode)
        return {"accuracy": right}


class EverythingModel(nn.Module):
    """Dropout, batch norm, tied, frozen, and sometimes unused parameters; a buffer that is assigned anew.

    `steps_done` counts one forward a step, those of shard 0, whose buffers last: the applied steps.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, width)
        self.norm = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(0.2)
        self.mix = nn.Linear(width, width, bias=False)
        self.mix_again = nn.Linear(width, width, bias=False)
        self.mix_again.weight = self.mix.weight
        self.frozen = nn.Linear(width, width)
        self.frozen.requires_grad_(False)
        self.even_steps = nn.Parameter(torch.ones(width))
        self.never = nn.Parameter(torch.ones(3))
        self.head = nn.Linear(width, CLASSES)
        self.register_buffer("steps_done", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen_mean", torch.zeros(width), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        x = self.dropout(F.relu(self.norm(self.embed(features))))
        x = self.mix_again(F.relu(self.mix(x))) + self.frozen(x)
        steps_done = self.get_buffer("steps_done")
        if self.training:
            steps_done += 1
            self.seen_mean = 0.9 * self.get_buffer("seen_mean") + 0.1 * x.detach().mean(dim=0)
        if int(steps_done) % 2 == 0:
            x = x * self.even_steps
        return self.head(x + 0.1 * self.get_buffer("seen_mean"))  # type: ignore[no-any-return]


class Everything(Tiny):
    """All that makes a run hard to repeat exactly, in one recipe."""

    augmented = True

    def model(self) -> nn.Module:
        return EverythingModel(self.width)


class Counting(nn.Module):
    """Wraps a model and counts the applied steps, so that a recipe knows which step it is in."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("steps_done", torch.zeros((), dtype=torch.int64))

    def forward(self, features: Tensor) -> Tensor:
        self.get_buffer("steps_done").add_(1)
        return self.model(features)  # type: ignore[no-any-return]


class Traced(Tiny):
    """Notes each shard's step in the file `trace`, so that one knows afterwards how far a run had come."""

    def __init__(self, *, trace: str, **rest: Any) -> None:
        super().__init__(**rest)
        self.trace = Path(trace)

    def model(self) -> nn.Module:
        return Counting(super().model())

    def loss(self, model: nn.Module, batch: Any) -> LossSum:
        result = super().loss(model, batch)
        with self.trace.open("a") as file:
            file.write(f"{int(model.get_buffer('steps_done'))}\n")
        return result


class Trouble(Tiny):
    """Does `trouble` in step `step` (and after, while no step is applied), or where sample `sample` is read.

    A step is told from applied updates. With `sample`, only the shard that holds it is struck, once an epoch.
    """

    def __init__(self, *, step: int | None = None, sample: int | None = None, **rest: Any) -> None:
        super().__init__(**rest)
        self.step, self.sample = step, sample

    def model(self) -> nn.Module:
        return Counting(super().model())

    def loss(self, model: nn.Module, batch: Any) -> LossSum:
        result = super().loss(model, batch)
        in_step = self.step is not None and int(model.get_buffer("steps_done")) == self.step
        in_shard = self.sample is not None and bool((batch.index == self.sample).any())
        return self.trouble(result) if in_step or in_shard else result

    def trouble(self, result: LossSum) -> LossSum:
        raise NotImplementedError


class Raises(Trouble):
    def trouble(self, result: LossSum) -> LossSum:
        raise ValueError("the recipe's own mistake")


class NotFinite(Trouble):
    def trouble(self, result: LossSum) -> LossSum:
        return LossSum(result.loss * float("nan"), result.items)


class BadLoss(Trouble):
    def trouble(self, result: LossSum) -> LossSum:
        return result.loss / result.items  # type: ignore[return-value]


class Hangs(Trouble):
    """Sleeps, for an hour if it is let."""

    def trouble(self, result: LossSum) -> LossSum:
        time.sleep(3600)
        return result
