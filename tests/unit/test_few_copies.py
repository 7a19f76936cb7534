"""What is large is held once: a state is handed on without a copy, and a base or group is made piece by piece."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch
from exact_models import train_step, trained
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_tasks.checkpoint import driver, pack
from openclaw_tasks.checkpoint.code import Code
from openclaw_tasks.checkpoint.commit import StripedObject, commit_base
from openclaw_tasks.checkpoint.documents import BaseManifest
from openclaw_tasks.checkpoint.paths import BaseName, ObjectName
from openclaw_tasks.checkpoint.stripes import StripeIdentity, build_stripes
from openclaw_tasks.exact.tensor_bytes import pack_tensors, tensor_parts
from openclaw_tasks.gang.ledger import GROUP_BYTES, MOST_GROUP_BYTES, Ledger, Order, Span
from openclaw_tasks.storage.memory_store import MemoryStore
from openclaw_tasks.storage.targets import TargetSet
from openclaw_tasks.training.base_copy import BaseCopy, pack_base

CODE = Code(3, 1)
BASE = BaseName(8, 1, "w")


def test_parts_of_tensors_are_the_packed_tensors() -> None:
    tensors = {
        "matrix": torch.arange(12.0).view(3, 4),
        "turned": torch.arange(12.0).view(3, 4).t(),
        "half": torch.ones(5, dtype=torch.bfloat16),
        "none": torch.empty(0, 3),
        "one": torch.tensor(7, dtype=torch.int64),
    }
    assert b"".join(tensor_parts(tensors)) == bytes(pack_tensors(tensors))
    assert b"".join(tensor_parts({})) == bytes(pack_tensors({}))


def test_live_parts_are_a_snapshots_objects_without_the_copy() -> None:
    """Also through the shared memory in which a rank hands them to its agent."""
    state = trained()
    snapshot = state.snapshot()
    objects, plain = state.live_parts()
    assert plain == snapshot.plain
    assert {name: b"".join(parts) for name, parts in objects.items()} == {
        name: bytes(data) for name, data in snapshot.objects.items()
    }
    copy = BaseCopy(*pack_base(objects, plain))
    train_step(state)
    assert b"".join(objects["params"]) != bytes(snapshot.objects["params"])
    unpacked, _ = copy.unpack()
    assert {name: bytes(data) for name, data in unpacked.items()} == {
        name: bytes(data) for name, data in snapshot.objects.items()
    }
    del unpacked
    copy.close()


@given(sizes=st.lists(st.integers(0, 40)), planes=st.sampled_from([1, 2, 4]))
@settings(deadline=None)
def test_records_are_packed_as_if_they_were_one(sizes: list[int], planes: int) -> None:
    whole = bytes(number % 251 for number in range(sum(sizes)))
    views, start = [], 0
    for size in sizes:
        views.append(memoryview(whole)[start : start + size])
        start += size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack, "PLANE_BYTES", 3)
        chunks = [bytes(chunk) for chunk in pack._chunks(views, planes)]
    assert b"".join(chunks) == whole
    assert all(len(chunk) == 3 * planes for chunk in chunks[:-1])


class Stripe(bytearray):
    """One whose end can be seen."""


def test_a_bases_objects_are_held_one_at_a_time() -> None:
    told: list[weakref.ref[Stripe]] = []

    def objects() -> Iterator[StripedObject]:
        for name in ("buffers", "optimizer", "params"):
            assert [stripe for stripe in told if stripe() is not None] == []
            yield made(name)

    def made(name: str) -> StripedObject:
        item = ObjectName(BASE, name, 1)
        stripes = [Stripe(one) for one in build_stripes(b"weights", CODE, StripeIdentity("lm", item, None, None))]
        told.extend(map(weakref.ref, stripes))
        return StripedObject(item, stripes)

    manifest = BaseManifest(
        run="lm",
        step=8,
        epoch=1,
        writer="w",
        n=3,
        m=1,
        applied=8,
        objects=(),
        plain={},
        weights_digest="w",
        state_digest="s",
    )
    stores = [MemoryStore(f"memory://{index}") for index in range(3)]
    targets = TargetSet(tuple(store.url for store in stores), tuple(stores), ("a", "b", "c"), {}, frozenset())
    held = driver.run(commit_base(CODE, "lm", 1, objects(), lambda: manifest), targets)
    assert held == {0, 1, 2}
    assert len(told) == 9
    assert all(store.read(manifest.key) for store in stores)


@pytest.mark.parametrize(
    ("record_bytes", "last"),
    [
        (10, 40),  # many small ones together
        (GROUP_BYTES // 8, 8),
        (MOST_GROUP_BYTES // 8, 8),  # as many as the job says
        (MOST_GROUP_BYTES // 5, 5),  # that would be too much
        (MOST_GROUP_BYTES, 1),
        (10 * MOST_GROUP_BYTES, 1),  # a single one, however large
    ],
)
def test_a_group_is_bounded_by_its_bytes(record_bytes: int, last: int) -> None:
    books = Ledger(0, group_steps=8)
    books.holds("a", Span(1, 40, 40 * record_bytes))
    assert books.next_order(0.0) == Order("a", 1, last)
