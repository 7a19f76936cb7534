"""Digests of a state, the file that is exported, and the safetensors bytes."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import pytest
import torch
from exact_models import TinyNet, make_state, trained
from safetensors import safe_open
from safetensors.torch import load, save

from openclaw_tasks.errors import DamagedError, RunError, UsageError
from openclaw_tasks.exact.export import export_weights
from openclaw_tasks.exact.tensor_bytes import pack_tensors, unpack_tensors


def test_weights_digest_can_be_computed_from_the_exported_file(tmp_path: Path) -> None:
    """With nothing but the library and hashlib, as CONTRACTS describes it."""
    state = trained()
    path = tmp_path / "weights.safetensors"
    export_weights(state, path)
    digest = hashlib.sha256()
    header_bytes = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + header_bytes])
    data = path.read_bytes()[8 + header_bytes :]
    for name in sorted(header, key=lambda name: name.encode()):
        begin, end = header[name]["data_offsets"]
        shape = ",".join(map(str, header[name]["shape"]))
        digest.update(f"{name}\0{header[name]['dtype']}\0{shape}\0".encode() + data[begin:end])
    assert digest.hexdigest() == state.weights_digest()
    with safe_open(path, "pt") as file:
        assert file.metadata() is None
        assert sorted(file.keys(), key=str.encode) == list(state.weights())
        for name, tensor in state.weights().items():
            assert torch.equal(file.get_tensor(name), tensor)


def test_weights_are_parameters_and_persistent_buffers_of_tied_ones_the_smallest() -> None:
    state = make_state()
    expected = set(state.model.state_dict()) - {"head.weight"}
    assert set(state.weights()) == expected
    assert "calls" not in state.weights()
    assert "mask" in state.weights()
    assert list(state.weights()) == sorted(state.weights(), key=str.encode)


def test_export_replaces_whole_files_and_leaves_nothing_else(tmp_path: Path) -> None:
    """piskvorky/smart_open#684: a half-written file looks valid."""
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"old")
    export_weights(make_state(), path)
    assert [p.name for p in tmp_path.iterdir()] == ["weights.safetensors"]
    assert load(path.read_bytes())
    with pytest.raises(UsageError, match="no folder"):
        export_weights(make_state(), tmp_path / "missing" / "file")


def test_export_to_a_full_disk_names_path_need_and_free_bytes(tmp_path: Path) -> None:
    """pytorch/pytorch#10577: an obscure message, and a broken file stays."""
    import resource

    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(RunError, match=r"weights\.safetensors: .* bytes needed, \d+ free"):
            export_weights(make_state(), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["weights.safetensors"]


def test_the_state_digest_sees_every_part() -> None:
    def change(what: str) -> str:
        state = trained(2)
        parameter = state.optimizer.param_groups[0]["params"][0]
        model = state.model
        assert isinstance(model, TinyNet)
        with torch.no_grad():
            if what == "parameter":
                parameter.view(-1)[0] += 1
            elif what == "frozen":
                model.frozen.bias[0] += 1
            elif what == "buffer":
                model.mask[0, 0] = -0.0
            elif what == "non-persistent":
                model.calls += 1
            elif what == "moment":
                state.optimizer.state[parameter]["exp_avg"].view(-1)[0] += 1
            elif what == "count":
                state.optimizer.state[parameter]["step"] += 1
            elif what == "group":
                state.optimizer.param_groups[0]["lr"] *= 2
        if what == "scaler":
            state.scaler = {"scale": 2.0}
        elif what == "step":
            state.step += 1
        elif what == "applied":
            state.applied += 1
        return state.state_digest()

    parts = ["parameter", "frozen", "buffer", "non-persistent", "moment", "count", "group", "scaler"]
    parts += ["step", "applied"]
    assert len({change(what) for what in ["nothing", *parts]}) == len(parts) + 1
    assert change("nothing") == change("nothing")


def test_weights_digest_does_not_see_what_is_no_weight() -> None:
    state = trained(2)
    before = state.digests()
    model = state.model
    assert isinstance(model, TinyNet)
    model.calls += 1
    state.step += 1
    after = state.digests()
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_packed_tensors_of_every_dtype_and_shape_are_read_by_the_library() -> None:
    tensors = {
        "scalar": torch.tensor(3, dtype=torch.int64),
        "empty": torch.zeros(0, 3),
        "half": torch.ones(3, dtype=torch.float16),
        "bf16": torch.ones(5, dtype=torch.bfloat16),
        "double": torch.ones(2, 2, dtype=torch.float64),
        "flags": torch.tensor([True, False, True]),
        "bytes": torch.arange(7, dtype=torch.uint8),
        "transposed": torch.arange(6.0).view(2, 3).T,
        "fp8": torch.ones(3).to(torch.float8_e4m3fn),
        "complex": torch.ones(2, dtype=torch.complex64),
    }
    data = bytes(pack_tensors(tensors))
    read = load(data)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(
            read[name].float() if name == "fp8" else read[name], tensor.float() if name == "fp8" else tensor
        )
    assert unpack_tensors(save(read)).keys() == tensors.keys()
    assert {n: (t.dtype, t.shape, bytes(t.data)) for n, t in unpack_tensors(data).items()} == {
        n: (t.dtype, t.shape, bytes(t.data)) for n, t in unpack_tensors(save(read)).items()
    }


def test_no_tensors_are_a_valid_object() -> None:
    assert unpack_tensors(pack_tensors({})) == {}
    assert load(bytes(pack_tensors({}))) == {}


@pytest.mark.parametrize(
    "header",
    [
        '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}',
        '{"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}',
        '{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}',
        '{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}',
        '{"a":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}}',
        '{"a":{"dtype":"F32","shape":[2]}}',
        '{"a":7}',
        "[]",
        "{",
    ],
)
def test_a_header_that_does_not_describe_the_data_is_damaged(header: str) -> None:
    text = header.encode()
    with pytest.raises(DamagedError):
        unpack_tensors(struct.pack("<Q", len(text)) + text + bytes(8))
