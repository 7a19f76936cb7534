"""What must hold for all records, plain values, tensors, codecs, sums and slices."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from openclaw_tasks.errors import DamagedError
from openclaw_tasks.exact.canonical import canonical_sum, fold, fold_scalars, owned_nodes
from openclaw_tasks.exact.codecs import codec_named
from openclaw_tasks.exact.layout import ALIGNMENT, FlatLayout
from openclaw_tasks.exact.plain import decode_plain, encode_plain
from openclaw_tasks.exact.record import BufferChange, Record, pack_presence, union_presence, unpack_presence
from openclaw_tasks.exact.seeding import permutation
from openclaw_tasks.exact.tensor_bytes import pack_tensors, unpack_tensors

quick = settings(max_examples=60, deadline=None)

floats = st.floats(allow_nan=False)
atoms = st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.floats()
keys = st.booleans() | st.integers() | st.text(max_size=6) | floats | st.tuples(st.integers())
plain_values = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=8,
)
buffer_changes = st.builds(
    lambda name, data: BufferChange(name, "U8", (len(data),), data), st.text(max_size=8), st.binary(max_size=9)
)
records = st.builds(
    Record,
    step=st.integers(1, 2**50),
    decision=st.sampled_from(["apply", "skip"]),
    items=st.integers(0, 2**50),
    loss=floats,
    present=st.binary(max_size=5),
    buffers=st.lists(buffer_changes, max_size=3).map(tuple),
    codec=st.sampled_from(["bf16", "exact", "int8"]),
    payload=st.binary(max_size=300),
    scaler=st.none() | st.dictionaries(st.text(max_size=4), st.integers() | floats, max_size=2),
)


def typed(value: Any) -> Any:
    """A form in which equal means equal in value, type and bits."""
    if isinstance(value, list | tuple):
        return type(value), [typed(item) for item in value]
    if isinstance(value, dict):
        return dict, {typed_key(key): typed(item) for key, item in value.items()}
    return type(value), value.hex() if isinstance(value, float) else value


def typed_key(key: Any) -> Any:
    return type(key), repr(key)


# Records.


@quick
@given(records)
def test_what_is_written_is_read(record: Record) -> None:
    data = record.to_bytes()
    parsed = Record.parse(data)
    assert parsed == record
    assert parsed.loss.hex() == record.loss.hex()
    assert typed(parsed.scaler) == typed(record.scaler)
    assert parsed.to_bytes() == data
    room = bytearray(len(data))
    assert record.write_into(memoryview(room)) == len(data)
    assert room == data


@quick
@given(records, st.data())
def test_any_changed_byte_is_damage(record: Record, data: st.DataObject) -> None:
    """HarperFast/harper#2016: a broken record must never be taken for another."""
    damaged = bytearray(record.to_bytes())
    position = data.draw(st.integers(0, len(damaged) - 1))
    damaged[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedError):
        Record.parse(damaged)


EXAMPLE = Record(
    step=12,
    decision="apply",
    items=96,
    loss=math.pi,
    present=b"\x05",
    buffers=(BufferChange("norm.mean", "F32", (2,), bytes(8)),),
    codec="int8",
    payload=bytes(range(130)),
    scaler={"scale": 2.0},
)


def test_each_flipped_bit_of_an_example_is_damage() -> None:
    data = EXAMPLE.to_bytes()
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(DamagedError):
                Record.parse(damaged)


def test_a_record_cut_at_any_byte_is_damage_verified_or_not() -> None:
    """HarperFast/harper#2016: a torn tail."""
    data = EXAMPLE.to_bytes()
    for length in range(len(data)):
        with pytest.raises(DamagedError):
            Record.parse(data[:length])
        with pytest.raises(DamagedError):
            Record.parse(data[:length], verify=False)


@quick
@given(st.binary(max_size=400), st.booleans())
def test_bytes_at_random_are_damage_or_a_record_but_no_other_error(data: bytes, verify: bool) -> None:
    for candidate in (data, b"OCLWREC1" + data):
        with pytest.raises(DamagedError):
            Record.parse(candidate, verify=verify)


@quick
@given(st.binary(min_size=1, max_size=40))
def test_bytes_behind_a_record_are_damage(tail: bytes) -> None:
    with pytest.raises(DamagedError):
        Record.parse(EXAMPLE.to_bytes() + tail)
    with pytest.raises(DamagedError):
        Record.parse(EXAMPLE.to_bytes() + tail, verify=False)


@quick
@given(st.lists(st.lists(st.booleans(), min_size=21, max_size=21), min_size=1, max_size=4))
def test_presence_is_a_union_of_flags(rows: list[list[bool]]) -> None:
    union = union_presence([pack_presence(row) for row in rows])
    assert unpack_presence(union, 21) == [any(column) for column in zip(*rows, strict=True)]


# Plain values and tensors.


@quick
@given(plain_values)
def test_plain_values_come_back_equal_and_of_equal_type_through_json(value: Any) -> None:
    """pytorch/pytorch#140900."""
    encoded = encode_plain(value, "value")
    assert typed(decode_plain(json.loads(json.dumps(encoded)))) == typed(value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | floats,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["float", "tuple", "dict", "tensor"]), inner, max_size=2)
    ),
    max_leaves=8,
)


@quick
@given(json_values)
def test_any_json_decodes_or_is_damage(value: Any) -> None:
    try:
        decode_plain(value)
    except DamagedError:
        pass


def test_packed_tensors_cut_at_any_byte_are_damage() -> None:
    data = pack_tensors({"a": torch.ones(3), "b": torch.zeros(2, 2, dtype=torch.int64), "c": torch.tensor(True)})
    assert len(unpack_tensors(data)) == 3
    for length in range(len(data)):
        with pytest.raises(DamagedError):
            unpack_tensors(data[:length])
    with pytest.raises(DamagedError):
        unpack_tensors(bytes(data) + b"\0")


@quick
@given(st.dictionaries(st.text(max_size=5), st.lists(st.integers(0, 3), max_size=3), max_size=4))
def test_packed_tensors_are_read_back(shapes: dict[str, list[int]]) -> None:
    kinds = [torch.float32, torch.int64, torch.bool, torch.bfloat16]
    tensors = {name: torch.ones(shape, dtype=kinds[index % 4]) for index, (name, shape) in enumerate(shapes.items())}
    tensors.pop("__metadata__", None)
    read = unpack_tensors(pack_tensors(tensors))
    assert {name: stored.shape for name, stored in read.items()} == {
        name: tuple(tensor.shape) for name, tensor in tensors.items()
    }


# Codecs and slices.


def special_gradient(numel: int, seed: int, *, infinite: bool) -> torch.Tensor:
    """Random bits of finite floats of all magnitudes, subnormal ones and both zeros among them."""
    bits = np.random.default_rng(seed).integers(0, 2**32, numel, dtype=np.uint32)
    values = torch.from_numpy(bits.view(np.float32).copy())
    values[~torch.isfinite(values)] = 0
    values[::7] = torch.tensor([0.0, -0.0, 1e-45, 3e38, -1.0, 1e-30])[seed % 6]
    if infinite:
        values[seed % numel] = math.inf
    return values


@quick
@given(
    st.sampled_from(["bf16", "exact", "int8"]),
    st.integers(1, 12),
    st.integers(1, 9),
    st.integers(0, 2**31),
    st.booleans(),
)
def test_encoded_slices_joined_equal_the_whole(name: str, blocks: int, parts: int, seed: int, infinite: bool) -> None:
    codec, numel = codec_named(name), blocks * ALIGNMENT
    model = nn.Module()
    model.register_parameter("p", nn.Parameter(torch.zeros(numel)))
    values = special_gradient(numel, seed, infinite=infinite)
    whole = bytearray(codec.encoded_bytes(numel))
    codec.encode(values, whole)
    joined = bytearray()
    decoded = torch.full((numel,), math.nan)
    for start, stop in FlatLayout.of(model).slices(parts):
        part = bytearray(codec.encoded_bytes(stop - start))
        codec.encode(values[start:stop], part)
        codec.decode(part, decoded[start:stop])
        joined += part
    assert joined == whole
    at_once = torch.full((numel,), math.nan)
    codec.decode(whole, at_once)
    assert at_once.numpy().tobytes() == decoded.numpy().tobytes()


@quick
@given(st.integers(0, 2**31))
def test_int8_is_within_half_a_scale_and_bf16_within_half_a_unit(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(ALIGNMENT, generator=generator) * 10.0 ** (seed % 60 - 30)
    out = torch.zeros(ALIGNMENT)
    data = bytearray(codec_named("int8").encoded_bytes(ALIGNMENT))
    codec_named("int8").encode(values, data)
    codec_named("int8").decode(data, out)
    largest = values.view(-1, 128).abs().amax(dim=1, keepdim=True)
    assert ((out - values).view(-1, 128).abs() <= largest / 127 * (0.5 + 2**-7)).all()
    halves = bytearray(codec_named("bf16").encoded_bytes(ALIGNMENT))
    codec_named("bf16").encode(values, halves)
    codec_named("bf16").decode(halves, out)
    assert ((out - values).abs() <= values.abs() * 2**-8).all()


@quick
@given(st.integers(1, 40 * ALIGNMENT), st.integers(1, 20))
def test_slices_cover_the_layout_once_at_aligned_cuts(numel: int, parts: int) -> None:
    model = nn.Module()
    model.register_parameter("p", nn.Parameter(torch.empty(numel)))
    layout = FlatLayout.of(model)
    slices = layout.slices(parts)
    assert len(slices) == parts
    assert slices[0][0] == 0
    assert slices[-1][1] == layout.numel
    assert all(before[1] == after[0] for before, after in pairwise(slices))
    assert all(cut % ALIGNMENT == 0 for pair in slices for cut in pair)
    sizes = [stop - start for start, stop in slices]
    assert max(sizes) - min(sizes) <= ALIGNMENT


# The canonical sum.


@st.composite
def owner_maps(draw: st.DrawFn) -> tuple[int, list[range]]:
    shards = draw(st.sampled_from([1, 2, 4, 8, 16]))
    cuts = sorted(draw(st.lists(st.integers(0, shards), max_size=6)))
    edges = [0, *cuts, shards]
    return shards, [range(a, b) for a, b in pairwise(edges)]


@quick
@given(owner_maps(), st.integers(0, 2**31))
def test_the_sum_has_the_same_bits_under_every_owner_map(owners: tuple[int, list[range]], seed: int) -> None:
    """meta-pytorch/torchft#309 and bghira/SimpleTuner#2986: who computes what changed the result."""
    shards, runs = owners
    generator = torch.Generator().manual_seed(seed)
    leaves = [torch.randn(257, generator=generator) * 10.0 ** (i % 5) for i in range(shards)]
    alone = canonical_sum({(i, 1): leaf.clone() for i, leaf in enumerate(leaves)}, shards)
    exchanged = {}
    for run in runs:
        mine = fold({(i, 1): leaves[i].clone() for i in run})
        assert sorted(mine) == owned_nodes(run)
        exchanged.update(mine)
    total = canonical_sum(exchanged, shards)
    assert total.numpy().tobytes() == alone.numpy().tobytes()


@quick
@given(st.sampled_from([1, 2, 4, 8, 16]), st.data())
def test_scalars_are_summed_like_tensors_of_one_float64(shards: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.floats(-1e100, 1e100), min_size=shards, max_size=shards))
    nodes = {(i, 1): torch.tensor([value], dtype=torch.float64) for i, value in enumerate(values)}
    assert fold_scalars(values).hex() == canonical_sum(nodes, shards).item().hex()


@quick
@given(st.integers(), st.integers(0, 1000), st.integers(0, 300))
def test_an_epoch_is_a_permutation_of_all_samples(seed: int, epoch: int, samples: int) -> None:
    """bghira/SimpleTuner#2986: some samples came twice, others never."""
    assert sorted(permutation(seed, epoch, samples).tolist()) == list(range(samples))
