"""Bases: a whole state as objects, packed, striped and named by a manifest; and back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class BuiltBase:
    """A base ready to be put. `stored_bytes`: payloads and the headers of the data stripes."""

    manifest: BaseManifest
    objects: tuple[StripedObject, ...]
    stored_bytes: int


def build_base(
    code: Code, spec: BaseSpec, objects: Mapping[str, Buffer], plain: Mapping[str, Any], facts: Mapping[str, Any]
) -> BuiltBase:
    """Pack and stripe `objects` (name -> bytes).

    facts: "applied", "weights_digest", "state_digest" of the state; "step", if given, must be the spec's.
    """
    assert facts.get("step", spec.step) == spec.step, (facts, spec)
    name = BaseName(spec.step, spec.epoch, spec.writer)
    striped: list[StripedObject] = []
    entries: list[BaseObject] = []
    total = 0
    for label, data in sorted(objects.items()):
        view = byte_view(data)
        payload = pack_object(view)
        item = ObjectName(name, label, spec.attempt)
        stripes = build_stripes(payload, code, StripeIdentity(spec.run, item, None, None))
        striped.append(StripedObject(item, stripes))
        total += stored_bytes(stripes, code, payload)
        entries.append(
            BaseObject(
                name=label,
                attempt=spec.attempt,
                object_bytes=view.nbytes,
                object_digest=hashlib.sha256(view).hexdigest(),
                payload_bytes=len(payload),
                payload_digest=hashlib.sha256(payload).hexdigest(),
            )
        )
    manifest = BaseManifest(
        run=spec.run,
        step=spec.step,
        epoch=spec.epoch,
        writer=spec.writer,
        n=code.n,
        m=code.m,
        applied=facts["applied"],
        objects=tuple(entries),
        plain=dict(plain),
        weights_digest=facts["weights_digest"],
        state_digest=facts["state_digest"],
    )
    return BuiltBase(manifest, tuple(striped), total)


def fetch_object(code: Code, manifest: BaseManifest, entry: BaseObject, order: Sequence[int]) -> Steps[memoryview]:
    """One object of a base, its own digest checked. Raises as `fetch`."""
    fetched = yield from fetch(code, manifest.run, manifest.object_name(entry), entry.payload_digest, order)
    data = unpack_object(fetched.rebuilt.payload)
    if hashlib.sha256(data).hexdigest() != entry.object_digest:
        raise DamagedError(f"{manifest.key}: object {entry.name!r} does not match its digest")
    return data
