"""A record's bytes: deterministic, self-checking, read without copying."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys

import numpy as np
import pytest

from openclaw_tasks.errors import DamagedError, RunError
from openclaw_tasks.exact.record import (
    BufferChange,
    BufferShape,
    Record,
    max_record_bytes,
    pack_presence,
    seal_record,
    union_presence,
    unpack_presence,
)

RECORD = Record(
    step=7,
    decision="apply",
    items=512,
    loss=0.1,
    present=pack_presence([True, False, True]),
    buffers=(BufferChange("norm.count", "I64", (), b"\x07" + bytes(7)), BufferChange("e", "F32", (0,), b"")),
    codec="bf16",
    payload=bytes(range(200)),
    scaler={"scale": 65536.0, "tracker": 3, "milestones": {5: (1, 2)}},
)


def resealed(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    changed = data.replace(old, new)[:-32]
    return changed + hashlib.sha256(changed).digest()


def test_the_format_is_pinned() -> None:
    """These bytes lie in logs; a change needs a new format number and a reader of the old one."""
    data = RECORD.to_bytes()
    assert data.startswith(b"OCLWREC1")
    assert hashlib.sha256(data).hexdigest() == "ba67792a57b46b249864fed0dc384c82adc9e7d342267a247f8c5eb0cc0d2146"


def test_what_was_written_is_read_with_its_types() -> None:
    parsed = Record.parse(RECORD.to_bytes())
    assert parsed == RECORD
    assert parsed.scaler == RECORD.scaler
    assert parsed.scaler is not None
    assert {type(key) for key in parsed.scaler["milestones"]} == {int}
    assert type(parsed.scaler["milestones"][5]) is tuple


def test_a_loss_that_is_not_finite_is_kept() -> None:
    for loss in (math.inf, -math.inf, math.nan):
        skipped = Record(3, "skip", 8, loss, b"\0", (), "int8", b"")
        parsed = Record.parse(skipped.to_bytes())
        assert parsed.loss == loss or math.isnan(loss)
        assert math.isnan(parsed.loss) == math.isnan(loss)


def test_parse_gives_views_and_an_aligned_payload() -> None:
    data = np.frombuffer(bytearray(RECORD.to_bytes()), dtype=np.uint8)
    payload = Record.parse(data).payload
    assert isinstance(payload, memoryview)
    view = np.frombuffer(payload, dtype=np.uint8)
    assert np.shares_memory(view, data)
    assert (view.__array_interface__["data"][0] - data.__array_interface__["data"][0]) % 64 == 0


def test_write_into_equals_to_bytes_and_returns_the_size() -> None:
    room = bytearray(4096)
    size = RECORD.write_into(memoryview(room))
    assert bytes(room[:size]) == RECORD.to_bytes()
    assert not any(room[size:])


def test_write_into_too_little_room_says_so() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        RECORD.write_into(memoryview(bytearray(100)))


def test_an_unsealed_record_is_damaged_until_it_is_sealed() -> None:
    room = memoryview(bytearray(4096))
    size = RECORD.write_into(room, seal=False)
    with pytest.raises(DamagedError, match="digest"):
        Record.parse(room[:size])
    assert Record.parse(room[:size], verify=False) == RECORD
    seal_record(room[:size])
    assert bytes(room[:size]) == RECORD.to_bytes()


def test_arrays_and_wide_views_count_in_bytes() -> None:
    words = np.arange(50, dtype=np.uint32)
    as_array = Record(1, "apply", 1, 0.0, b"\1", (), "exact", words.view(np.uint8))
    as_view = Record(1, "apply", 1, 0.0, b"\1", (), "exact", words.data)
    assert as_array.to_bytes() == as_view.to_bytes()
    assert Record.parse(as_array.to_bytes()).payload == words.tobytes()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"format":1', b'"format":2'),
        (b'"step":7', b'"step":-7'),
        (b'"step":7', b'"step":7.0'),
        (b'"step":7', b'"stop":7'),
        (b'"decision":"apply"', b'"decision":"appl"'),
        (b'"payload":200', b'"payload":201'),
        (b'"present":"05"', b'"present":"0x"'),
        (b'{"float"', b'{"flout"'),
        (b'"F32"', b"12345"),
        (b'"step":7', b'"step":['),
    ],
)
def test_a_sealed_record_of_another_kind_is_damaged(old: bytes, new: bytes) -> None:
    with pytest.raises(DamagedError):
        Record.parse(resealed(RECORD.to_bytes(), old, new))


@pytest.mark.parametrize("data", [b"", b"OCLWREC1", b"x" * 300, b"OCLWREC1" + b"\xff" * 300])
def test_other_bytes_are_damaged_even_unverified(data: bytes) -> None:
    for verify in (True, False):
        with pytest.raises(DamagedError):
            Record.parse(data, verify=verify)


def test_scaler_state_of_an_unknown_type_is_refused_when_written() -> None:
    """pytorch/pytorch#140900: refused at save, not at load."""
    with pytest.raises(RunError, match=r"scaler/scale is a numpy\.float32"):
        Record(1, "skip", 1, 0.0, b"", (), "bf16", b"", {"scale": np.float32(2)}).to_bytes()


def test_no_record_exceeds_its_bound() -> None:
    shapes = [BufferShape("norm.count", "I64", (), 8), BufferShape("e", "F32", (0,), 0)]
    bound = max_record_bytes(200, 3, shapes)
    largest = Record(2**60, "apply", 2**60, -5e-324, b"\7", RECORD.buffers, "exact", bytes(200), RECORD.scaler)
    assert len(RECORD.to_bytes()) <= len(largest.to_bytes()) <= bound <= 200 + 8 + 2048


def test_presence_masks_pack_join_and_unpack() -> None:
    flags = [i % 3 == 0 for i in range(19)]
    others = [i % 4 == 1 for i in range(19)]
    assert unpack_presence(pack_presence(flags), 19) == flags
    union = union_presence([pack_presence(flags), pack_presence(others)])
    assert unpack_presence(union, 19) == [a or b for a, b in zip(flags, others, strict=True)]
    assert pack_presence([True, False, False, False, False, False, False, False, True]) == b"\x01\x01"


@pytest.mark.parametrize("mask", [b"", b"\x08", b"\0\0"])
def test_a_mask_of_other_entries_is_damaged(mask: bytes) -> None:
    with pytest.raises(DamagedError, match="3 entries"):
        unpack_presence(mask, 3)


def test_records_need_no_torch() -> None:
    code = "import openclaw_tasks.exact.record, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
