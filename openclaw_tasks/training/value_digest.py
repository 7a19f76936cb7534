"""A digest of a sample: whatever tensors, arrays, numbers, text and containers of these it is made of."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

import numpy as np
import torch
from torch import Tensor

from openclaw_tasks.errors import RecipeError
from openclaw_tasks.exact.tensor_bytes import raw_bytes


class ValueHasher:
    """SHA-256 over values one after another, with their types (1, 1.0 and True differ) and boundaries."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def add(self, value: object) -> None:
        """Raises RecipeError for a value of a type whose content is not known."""
        match value:
            case None | bool() | int() | float() | complex():
                self._put(type(value).__name__, repr(value).encode())
            case str():
                self._put("str", value.encode("utf-8", "surrogatepass"))
            case bytes() | bytearray():
                self._put("bytes", bytes(value))
            case Tensor():
                self._add_tensor(value)
            case np.ndarray() | np.generic():
                self._add_array(np.asarray(value))
            case Mapping():
                self._put("mapping", str(len(value)).encode())
                self._add_unordered(value.items())
            case AbstractSet():
                self._put("set", str(len(value)).encode())
                self._add_unordered(value)
            case list() | tuple():
                self._put("sequence", f"{type(value).__name__}\0{len(value)}".encode())
                for item in value:
                    self.add(item)
            case _:
                kind = f"{type(value).__module__}.{type(value).__qualname__}"
                raise RecipeError(
                    f"dataset: a sample holds a {kind}, whose content cannot be compared; "
                    "give the dataset a method fingerprint() -> str, or turn it into a tensor"
                )

    def _put(self, kind: str, data: bytes | memoryview) -> None:
        self._hash.update(f"{kind}\0{len(data)}\0".encode())
        self._hash.update(data)

    def _add_tensor(self, tensor: Tensor) -> None:
        if tensor.layout is not torch.strided:
            tensor = tensor.to_dense()
        # A conjugated or negated view's bytes are not its values.
        tensor = tensor.detach().resolve_conj().resolve_neg()
        self._put(f"tensor\0{tensor.dtype}\0{tuple(tensor.shape)}", raw_bytes(tensor))

    def _add_array(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> None:
        if array.dtype.hasobject:
            self._put("objects", str(array.shape).encode())
            for item in array.flat:
                self.add(item)
            return
        self._put(f"array\0{array.dtype.str}\0{array.dtype.descr}\0{array.shape}", array.tobytes())

    def _add_unordered(self, items: Iterable[object]) -> None:
        digests = []
        for item in items:
            hasher = ValueHasher()
            hasher.add(item)
            digests.append(hasher.hexdigest())
        self._put("unordered", "".join(sorted(digests)).encode())
