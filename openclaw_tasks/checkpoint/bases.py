"""Bases: a whole state as objects, packed, striped and named by a manifest; and back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.commit import StripedObject
from openclaw_tasks.checkpoint.documents import BaseManifest, BaseObject
from openclaw_tasks.checkpoint.fetch import fetch
from openclaw_tasks.checkpoint.lineage import BaseSpec
from openclaw_tasks.checkpoint.operations import Steps
from openclaw_tasks.checkpoint.pack import pack_object, unpack_object
from openclaw_tasks.checkpoint.paths import BaseName, ObjectName
from openclaw_tasks.checkpoint.stripes import StripeIdentity, build_stripes, stored_bytes
from openclaw_tasks.errors import DamagedError
from openclaw_tasks.exact.record import Buffer, byte_view


class BaseBuilder:
    """Makes a base's objects, one when the last has been put, and then the manifest that names them."""

    def __init__(
        self,
        code: Code,
        spec: BaseSpec,
        objects: Mapping[str, Buffer],
        plain: Mapping[str, Any],
        facts: Mapping[str, Any],
    ) -> None:
        """`objects`: name -> bytes. facts: "applied", "weights_digest", "state_digest" of the state; "step", if
        given, must be the spec's."""
        assert facts.get("step", spec.step) == spec.step, (facts, spec)
        self._code = code
        self._spec = spec
        self._objects = objects
        self._plain = plain
        self._facts = facts
        self._name = BaseName(spec.step, spec.epoch, spec.writer)
        self._entries: list[BaseObject] = []
        self.stored_bytes = 0
        """Payloads and the headers of the data stripes."""

    def objects(self) -> Iterator[StripedObject]:
        """Each object packed and striped, in the order of their names. Keeps none of them."""
        return (self._build(name, byte_view(self._objects[name])) for name in sorted(self._objects))

    def _build(self, name: str, data: memoryview) -> StripedObject:
        payload = pack_object(data)
        digest = hashlib.sha256(payload).hexdigest()
        item = ObjectName(self._name, name, self._spec.attempt)
        stripes = build_stripes(payload, self._code, StripeIdentity(self._spec.run, item, None, None), digest)
        self.stored_bytes += stored_bytes(stripes, self._code, payload)
        self._entries.append(
            BaseObject(
                name=name,
                attempt=self._spec.attempt,
                object_bytes=data.nbytes,
                object_digest=hashlib.sha256(data).hexdigest(),
                payload_bytes=len(payload),
                payload_digest=digest,
            )
        )
        return StripedObject(item, stripes)

    def manifest(self) -> BaseManifest:
        """Of all objects, when they have been made."""
        spec, facts = self._spec, self._facts
        return BaseManifest(
            run=spec.run,
            step=spec.step,
            epoch=spec.epoch,
            writer=spec.writer,
            n=self._code.n,
            m=self._code.m,
            applied=facts["applied"],
            objects=tuple(self._entries),
            plain=dict(self._plain),
            weights_digest=facts["weights_digest"],
            state_digest=facts["state_digest"],
        )


def fetch_object(code: Code, manifest: BaseManifest, entry: BaseObject, order: Sequence[int]) -> Steps[memoryview]:
    """One object of a base, its own digest checked. Raises as `fetch`."""
    fetched = yield from fetch(code, manifest.run, manifest.object_name(entry), entry.payload_digest, order)
    data = unpack_object(fetched.rebuilt.payload)
    if hashlib.sha256(data).hexdigest() != entry.object_digest:
        raise DamagedError(f"{manifest.key}: object {entry.name!r} does not match its digest")
    return data
