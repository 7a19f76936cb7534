"""The flat layout: every trainable parameter's place in one float32 vector.

Parameters lie in the order of the UTF-8 bytes of their names, without gaps, so that the layout is a
pure function of the model's names and shapes: not of the order in which modules were defined, of
ranks, or of the optimizer. A tied parameter lies there once, under its smallest name. Slices are cut
at multiples of `ALIGNMENT` only, which every codec's block divides, so that encoding slices and
joining them gives the bytes that encoding the whole gives.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from torch import Tensor, nn

from openclaw_tasks.errors import RecipeError
from openclaw_tasks.exact.plain import Json, canonical_json
from openclaw_tasks.exact.tensor_bytes import dtype_name

ALIGNMENT = 1024
"""Elements; slices of the flat layout start and end at multiples of it."""


def name_order(name: str) -> bytes:
    """The sort key of every list of names: their UTF-8 bytes."""
    return name.encode()


def unique_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Each parameter once, under its smallest name, in name order; frozen ones too.

    Raises RecipeError for a lazy parameter that has no shape yet.
    """
    named = sorted(model.named_parameters(remove_duplicate=False), key=lambda item: name_order(item[0]))
    first: dict[int, tuple[str, nn.Parameter]] = {}
    for name, parameter in named:
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise RecipeError(f"parameter {name!r} has no shape yet: run the lazy module once in model()")
        first.setdefault(id(parameter), (name, parameter))
    return dict(first.values())


@dataclass(frozen=True, slots=True)
class Entry:
    """One trainable parameter: elements `offset .. offset + numel - 1` of the flat vector."""

    name: str
    shape: tuple[int, ...]
    offset: int
    numel: int
    dtype: str


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """Entries in name order; `numel` is padded up to a multiple of `ALIGNMENT`, the padding is zero."""

    entries: tuple[Entry, ...]
    numel: int

    @classmethod
    def of(cls, model: nn.Module) -> FlatLayout:
        """The layout of the parameters that require a gradient.

        Raises RecipeError when there are none, or one is complex or lazy.
        """
        entries: list[Entry] = []
        offset = 0
        for name, parameter in unique_parameters(model).items():
            if not parameter.requires_grad:
                continue
            if parameter.is_complex():
                raise RecipeError(f"parameter {name!r} is complex; hold its real and imaginary parts")
            numel = parameter.numel()
            entries.append(Entry(name, tuple(parameter.shape), offset, numel, dtype_name(parameter.dtype)))
            offset += numel
        if offset == 0:
            raise RecipeError("the model has no parameter to train: none requires a gradient")
        return cls(tuple(entries), -(-offset // ALIGNMENT) * ALIGNMENT)

    def digest(self) -> str:
        """SHA-256 in hex over names, shapes, offsets and dtypes."""
        entries: list[Json] = [[e.name, list(e.shape), e.offset, e.numel, e.dtype] for e in self.entries]
        return hashlib.sha256(canonical_json({"entries": entries, "numel": self.numel})).hexdigest()

    def slices(self, parts: int) -> tuple[tuple[int, int], ...]:
        """`parts` (start, stop) pairs that cover 0 .. numel in order, near equal; some may be empty."""
        assert parts > 0
        blocks = self.numel // ALIGNMENT
        cuts = [blocks * part // parts * ALIGNMENT for part in range(parts + 1)]
        return tuple(pairwise(cuts))

    def views(self, flat: Tensor) -> list[Tensor]:
        """Each entry's shaped view of `flat`, a one-dimensional tensor of `numel` elements."""
        assert flat.shape == (self.numel,)
        assert all(prod(entry.shape) == entry.numel for entry in self.entries)
        return [flat[e.offset : e.offset + e.numel].view(e.shape) for e in self.entries]
