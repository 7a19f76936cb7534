"""A snapshot: the whole state at one step boundary, as bytes of its own, and the digests of a state.

The digests of a snapshot and of the live state it was taken from are the same, since both go through
the two functions here. `weights_digest` can be computed by anybody from an exported file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from openclaw_tasks.errors import DamagedError
from openclaw_tasks.exact.layout import name_order
from openclaw_tasks.exact.plain import Json, canonical_json
from openclaw_tasks.exact.record import Buffer, byte_view
from openclaw_tasks.exact.tensor_bytes import StoredTensor, unpack_tensors

Entries: TypeAlias = Iterable[tuple[str, StoredTensor]]

FORMAT = 1


def _add_entries(digest: hashlib._Hash, entries: Entries) -> None:
    for name, stored in entries:
        shape = ",".join(str(size) for size in stored.shape)
        digest.update(b"\0".join((name.encode(), stored.dtype.encode(), shape.encode(), b"")))
        digest.update(stored.data)


def digest_weights(entries: Entries) -> str:
    """SHA-256 in hex over (name, dtype, shape, bytes) of each entry; entries come in name order."""
    digest = hashlib.sha256()
    _add_entries(digest, entries)
    return digest.hexdigest()


def digest_state(weights_digest: str, non_persistent: Entries, optimizer: Entries, counters: Json) -> str:
    """SHA-256 in hex over the weights' digest and all else that the next step depends on."""
    digest = hashlib.sha256(b"openclaw state 1\0" + bytes.fromhex(weights_digest))
    for entries in (non_persistent, optimizer):
        _add_entries(digest, entries)
        digest.update(b"\0")
    digest.update(canonical_json(counters))
    return digest.hexdigest()


def counters_of(step: int, applied: int, plain: dict[str, Json]) -> Json:
    """The part of a state that is no tensor, as `digest_state` wants it."""
    return {"step": step, "applied": applied, "optimizer": plain["optimizer"], "scaler": plain["scaler"]}


def in_name_order(tensors: dict[str, StoredTensor]) -> Iterator[tuple[str, StoredTensor]]:
    """The items by the UTF-8 bytes of their names."""
    return iter(sorted(tensors.items(), key=lambda item: name_order(item[0])))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after `step` steps, `applied` of which changed it.

    `objects` holds safetensors buffers named "params", "buffers" and "optimizer". `plain` is JSON: the
    optimizer's plain values by parameter name, the scaler, the names of non-persistent buffers, the
    layout's digest. It survives `json.loads(json.dumps(plain))` unchanged.
    """

    step: int
    applied: int
    objects: dict[str, Buffer]
    plain: dict[str, Json]

    @property
    def size_bytes(self) -> int:
        """Bytes of all objects."""
        return sum(byte_view(data).nbytes for data in self.objects.values())

    def tensors(self, name: str) -> dict[str, StoredTensor]:
        """The tensors of one object, as views of it. Raises DamagedError."""
        if name not in self.objects:
            raise DamagedError(f"the snapshot of step {self.step} has no object {name!r}")
        return unpack_tensors(self.objects[name])

    def non_persistent_names(self) -> set[str]:
        """The buffers that are state but no weights. Raises DamagedError."""
        names = self.plain.get("non_persistent")
        if not isinstance(names, list):
            raise DamagedError(f"the snapshot of step {self.step} does not name its non-persistent buffers")
        return {str(name) for name in names}

    def digests(self) -> tuple[str, str]:
        """(weights_digest, state_digest); each byte is hashed once. Raises DamagedError."""
        hidden = self.non_persistent_names()
        buffers = self.tensors("buffers")
        kept = {name: stored for name, stored in buffers.items() if name not in hidden}
        weights = digest_weights(in_name_order({**self.tensors("params"), **kept}))
        state = digest_state(
            weights,
            in_name_order({name: stored for name, stored in buffers.items() if name in hidden}),
            in_name_order(self.tensors("optimizer")),
            counters_of(self.step, self.applied, self.plain),
        )
        return weights, state

    def weights_digest(self) -> str:
        """As the live state's."""
        return self.digests()[0]

    def state_digest(self) -> str:
        """As the live state's."""
        return self.digests()[1]
