"""A language model over bytes: a small decoder transformer, for any text, with no vocabulary to prepare.

Names of tensors end in their shape: B batch, L length (T is L + 1), D width, H heads, K width of a head,
V values of a byte.
"""

# ruff: noqa: N803, N806 (shape suffixes)

from __future__ import annotations

import functools
import glob
import hashlib
import math
import os
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import AdamW, Optimizer
from torch.utils.data import Dataset

from openclaw_tasks.errors import RecipeError
from openclaw_tasks.recipes.recipe import LossSum, Recipe

_NUM_BYTES = 256
_HELD_OUT_EVERY = 20
_EVALUATED_WINDOWS = 64


class ByteLM(Recipe):
    """Predict each byte of some files from the bytes before it.

    `data`: a glob of the files (`**` goes through folders); by default the sources of Python's standard
    library. `width`, `layers`, `heads`: the size of the transformer. `context`: bytes in a sample.
    `tied`: use the embedding as the output layer too. `lr` is reached after `warmup` updates; with `decay`,
    a cosine then takes it to a tenth at update `decay`, without, it stays.
    """

    def __init__(
        self,
        *,
        data: str | None = None,
        width: int = 128,
        layers: int = 4,
        heads: int = 4,
        context: int = 128,
        dropout: float = 0.1,
        tied: bool = True,
        lr: float = 3e-3,
        weight_decay: float = 0.1,
        warmup: int = 20,
        decay: int | None = None,
    ) -> None:
        sizes = {"width": width, "layers": layers, "heads": heads, "context": context}
        for name, size in sizes.items():
            if type(size) is not int or size < 1:
                raise RecipeError(f"recipe_args.{name}={size!r} must be a whole number, at least 1")
        if width % (2 * heads):
            raise RecipeError(f"recipe_args.width={width} must be a multiple of twice recipe_args.heads={heads}")
        if decay is not None and decay <= warmup:
            raise RecipeError(f"recipe_args.decay={decay} must be greater than recipe_args.warmup={warmup}")
        self.data = data
        self.width, self.layers, self.heads, self.context = width, layers, heads, context
        self.dropout, self.tied = dropout, tied
        self.lr, self.weight_decay, self.warmup, self.decay = lr, weight_decay, warmup, decay

    def model(self) -> nn.Module:
        return ByteTransformer(self.width, self.layers, self.heads, self.context, self.dropout, self.tied)

    def dataset(self) -> Dataset[Tensor]:
        return ByteWindows(_read_corpus(self.data).training, self.context)

    def loss(self, model: nn.Module, batch: Any) -> LossSum:
        bytes_BT = batch.long()
        targets_BL = bytes_BT[:, 1:]
        logits_BLV = model(bytes_BT[:, :-1])
        loss = F.cross_entropy(logits_BLV.flatten(0, 1), targets_BL.flatten(), reduction="sum")
        return LossSum(loss, targets_BL.numel())

    def optimizer(self, params: Sequence[nn.Parameter]) -> Optimizer:
        return AdamW(params, lr=self.lr, betas=(0.9, 0.95), weight_decay=self.weight_decay, fused=True)

    def schedule(self, applied: int) -> float:
        if applied < self.warmup:
            return (applied + 1) / self.warmup
        if self.decay is None:
            return 1.0
        progress = min(1.0, (applied - self.warmup) / (self.decay - self.warmup))
        return 0.55 + 0.45 * math.cos(math.pi * progress)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Bits per byte of held-out text, on windows spread over it; nothing if it is shorter than one."""
        text = _read_corpus(self.data).held_out
        if text.numel() <= self.context:
            return {}
        held_out = ByteWindows(text, self.context)
        stride = -(-len(held_out) // _EVALUATED_WINDOWS)
        was_training = model.training
        model.eval()
        total, items = 0.0, 0
        with torch.no_grad():
            for start in range(0, len(held_out), 16 * stride):
                windows = range(start, min(start + 16 * stride, len(held_out)), stride)
                loss = self.loss(model, torch.stack([held_out[window] for window in windows]))
                total += loss.loss.item()
                items += loss.items
        model.train(was_training)
        return {"bits_per_byte": total / items / math.log(2)}


class ByteWindows(Dataset[Tensor]):
    """Windows of `context` + 1 bytes over a text, one after another; each shares one byte with the next."""

    def __init__(self, text: Tensor, context: int) -> None:
        self.text, self.context = text, context
        if not len(self):
            raise RecipeError(
                f"recipe_args.data: {text.numel()} bytes of text are fewer than one sample needs, "
                f"recipe_args.context={context} + 1; name more files, or a shorter context"
            )

    def __len__(self) -> int:
        return (self.text.numel() - 1) // self.context

    def __getitem__(self, index: int) -> Tensor:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = index * self.context
        return self.text[start : start + self.context + 1]

    def fingerprint(self) -> str:
        return f"{self.context}:{hashlib.sha256(self.text.numpy().data).hexdigest()}"


class ByteTransformer(nn.Module):
    """Pre-norm decoder with rotary positions; norms have no weights, linear layers no biases."""

    def __init__(self, width: int, layers: int, heads: int, context: int, dropout: float, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_NUM_BYTES, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.output = nn.Linear(width, _NUM_BYTES, bias=False)
        if tied:
            self.output.weight = self.embedding.weight
        cos_LK, sin_LK = _rotations(context, width // heads)
        self.register_buffer("cos", cos_LK, persistent=False)
        self.register_buffer("sin", sin_LK, persistent=False)
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.normal_(self.output.weight, std=0.02)

    def forward(self, bytes_BL: Tensor) -> Tensor:
        """Logits of shape (B, L, 256) for the byte after each of `bytes_BL`, L at most the context."""
        length = bytes_BL.shape[1]
        rotation = (self.get_buffer("cos")[:length], self.get_buffer("sin")[:length])
        x_BLD = self.embedding(bytes_BL)
        for block in self.blocks:
            x_BLD = block(x_BLD, rotation)
        return self.output(_norm(x_BLD))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and a feed-forward layer, each added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.mixed = nn.Linear(width, width, bias=False)
        self.expand = nn.Linear(width, 4 * width, bias=False)
        self.contract = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)
        for layer in (self.qkv, self.expand):
            nn.init.normal_(layer.weight, std=width**-0.5)
        for layer in (self.mixed, self.contract):
            nn.init.zeros_(layer.weight)  # each block starts as the identity

    def forward(self, x_BLD: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        x_BLD = x_BLD + self.dropout(self._attend(_norm(x_BLD), rotation))
        hidden = F.relu(self.expand(_norm(x_BLD))).square()
        return x_BLD + self.dropout(self.contract(hidden))  # type: ignore[no-any-return]

    def _attend(self, x_BLD: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        batch, length, width = x_BLD.shape
        qkv = self.qkv(x_BLD).view(batch, length, 3, self.heads, width // self.heads)
        q_BHLK, k_BHLK, v_BHLK = qkv.permute(2, 0, 3, 1, 4)
        q_BHLK, k_BHLK = _rotate(_norm(q_BHLK), rotation), _rotate(_norm(k_BHLK), rotation)
        # No dropout inside: with it torch leaves its fast path on CPUs.
        y_BHLK = F.scaled_dot_product_attention(q_BHLK, k_BHLK, v_BHLK, is_causal=True)
        return self.mixed(y_BHLK.transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]


def _norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],))


def _rotations(context: int, head_width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of shape (L, K) for `_rotate`, both halves of K alike."""
    frequencies = 10_000.0 ** (-torch.arange(0, head_width, 2) / head_width)
    angles_LK = torch.outer(torch.arange(context), frequencies).repeat(1, 2)
    return angles_LK.cos(), angles_LK.sin()


def _rotate(x_BHLK: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions: turn each pair (k, k + K/2) by an angle in proportion to the position."""
    cos_LK, sin_LK = rotation
    first, second = x_BHLK.chunk(2, dim=-1)
    return x_BHLK * cos_LK + torch.cat((-second, first), dim=-1) * sin_LK


class Corpus(NamedTuple):
    """Text to train on and text held out, each one uint8 tensor."""

    training: Tensor
    held_out: Tensor


@functools.lru_cache(maxsize=2)
def _read_corpus(pattern: str | None) -> Corpus:
    """Every 20th file by name is held out, or, of fewer files, the last 20th of the text."""
    paths = _standard_library() if pattern is None else _matches(pattern)
    training = bytearray()
    held_out = bytearray()
    for number, path in enumerate(paths, start=1):
        part = held_out if number % _HELD_OUT_EVERY == 0 else training
        part += path.read_bytes()
    if not held_out:
        cut = len(training) - len(training) // _HELD_OUT_EVERY
        training, held_out = training[:cut], training[cut:]
    return Corpus(_as_tensor(training), _as_tensor(held_out))


def _as_tensor(data: bytearray) -> Tensor:
    return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _matches(pattern: str) -> list[Path]:
    resolved = str(Path(pattern).expanduser().absolute())
    found = glob.glob(resolved, recursive=True)  # noqa: PTH207 (Path.glob takes no absolute pattern)
    paths = sorted(path for path in map(Path, found) if path.is_file())
    if not paths:
        raise RecipeError(
            f"recipe_args.data: no file matches {resolved}; correct the pattern (** goes through folders)"
        )
    return paths


def _standard_library() -> list[Path]:
    """Python's own sources but for its tests, which not every distribution ships."""
    return sorted(_python_files(sysconfig.get_path("stdlib")))


def _python_files(root: str) -> Iterator[Path]:
    skipped = {"__pycache__", "idle_test", "site-packages", "dist-packages", "test", "tests"}
    for folder, folders, files in os.walk(root):
        # config-* and _sysconfigdata* tell how this very Python was built.
        folders[:] = [name for name in folders if name not in skipped and not name.startswith("config-")]
        names = (name for name in files if name.endswith(".py") and not name.startswith("_sysconfigdata"))
        yield from (Path(folder, name) for name in names)
