"""Packing any records gives them back."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_tasks.checkpoint.pack import pack_group, unpack_group
from openclaw_tasks.errors import DamagedError

records = st.lists(st.binary(max_size=300) | st.integers(0, 400_000).map(lambda size: b"\x3f\x80\x01" * (size // 3)))


@settings(deadline=None)
@given(records, st.sampled_from([1, 2, 4]))
def test_any_records_come_back(group: list[bytes], planes: int) -> None:
    assert unpack_group(pack_group(group, planes=planes)) == group


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_other_bytes_are_damage(payload: bytes) -> None:
    try:
        unpack_group(payload)
    except DamagedError:
        return
    raise AssertionError("accepted")
