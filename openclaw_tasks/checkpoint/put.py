"""Putting one group or one base: what a putter calls, in any process, with only the targets and a spec."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openclaw_tasks.checkpoint import driver
from openclaw_tasks.checkpoint.bases import BaseBuilder
from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.commit import commit_base, commit_group
from openclaw_tasks.checkpoint.history import group_name
from openclaw_tasks.checkpoint.lineage import BaseRef, BaseSpec, GroupRef, GroupSpec
from openclaw_tasks.checkpoint.pack import pack_group, planes_of_codec
from openclaw_tasks.checkpoint.stripes import StripeIdentity, build_stripes, stored_bytes
from openclaw_tasks.exact.record import Buffer, byte_view

if TYPE_CHECKING:
    from openclaw_tasks.storage.targets import TargetSet


@dataclass(frozen=True, slots=True)
class GroupResult:
    """An acknowledged group. `stored_bytes`: its payload and the headers of the k data stripes."""

    ref: GroupRef
    stored_bytes: int
    acked: int
    degraded: bool


@dataclass(frozen=True, slots=True)
class BaseResult:
    """An acknowledged base; `stored_bytes` counted like a group's."""

    ref: BaseRef
    stored_bytes: int
    acked: int
    degraded: bool


def put_group(targets: TargetSet, spec: GroupSpec, records: Sequence[Buffer]) -> GroupResult:
    """Pack, stripe and put `records` (the bytes of steps spec.first..spec.last), then check the fence.

    Raises FencedError, NotDurableError (nothing is acknowledged; repeat as a new attempt).
    """
    assert len(records) == spec.last - spec.first + 1, (spec, len(records))
    code = Code(len(targets.urls), spec.redundancy)
    payload = pack_group([byte_view(record) for record in records], planes=planes_of_codec(spec.codec))
    ref = GroupRef(
        epoch=spec.epoch,
        writer=spec.writer,
        seq=spec.seq,
        attempt=spec.attempt,
        first=spec.first,
        last=spec.last,
        previous=spec.previous,
        digest=hashlib.sha256(payload).hexdigest(),
        size=len(payload),
    )
    name = group_name(ref)
    identity = StripeIdentity(spec.run, name, spec.codec, spec.previous or None)
    stripes = build_stripes(payload, code, identity, ref.digest)
    size = stored_bytes(stripes, code, payload)
    del payload  # the stripes hold all of it, and putting them takes its time
    acked = driver.run(commit_group(code, spec.run, name, stripes), targets, may_skip=code.m)
    return GroupResult(ref, size, len(acked), len(acked) < code.n)


def put_base(
    targets: TargetSet,
    spec: BaseSpec,
    objects: Mapping[str, Buffer],
    plain: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> BaseResult:
    """Put a base: every object durable and read back, the fence checked, then the manifest.

    objects, plain: as in a Snapshot. facts: "applied", "weights_digest", "state_digest" of that state.
    Raises FencedError, NotDurableError.
    """
    code = Code(len(targets.urls), spec.redundancy)
    builder = BaseBuilder(code, spec, objects, plain, facts)
    steps = commit_base(code, spec.run, spec.epoch, builder.objects(), builder.manifest)
    acked = driver.run(steps, targets, may_skip=code.m)
    ref = BaseRef(epoch=spec.epoch, writer=spec.writer, step=spec.step)
    return BaseResult(ref, builder.stored_bytes, len(acked), len(acked) < code.n)
