"""What a run has left in its targets: taken out with `export`, proven with `verify`, damaged as far as it may be."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import OPENCLAW, Ended, openclaw
from drills import STEPS, Drills
from safetensors import safe_open

from openclaw_tasks.config.job import TrainJob

pytestmark = [pytest.mark.chaos, pytest.mark.flow]

PROOF_FIELDS = ["run", "step", "weights_digest", "state_digest", "ok"]
FILE_LIMIT_BYTES = 1000


@pytest.fixture
def copied(drills: Drills, calm: dict[str, Any], tmp_path: Path) -> list[Path]:
    """The undisturbed run's targets, for this test alone."""
    return [shutil.copytree(target, tmp_path / target.name) for target in drills.targets(calm["run"])]


def ask(drills: Drills, command: str, targets: list[Path], *words: str | os.PathLike[str], **how: Any) -> Ended:
    places = [target.as_uri() for target in targets]
    return openclaw(command, "calm", "--set", f"store.targets={places}", *words, home=drills.home, **how)


def flip_a_byte_in_every_file(target: Path) -> None:
    """In the middle, whatever the file is: stripes, manifests, claims, the target's own identity."""
    for path in target.rglob("*"):
        if path.is_file():
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)


def digest_of(file: Path) -> str:
    """As CONTRACTS.md words it, with nothing but the safetensors library."""
    hasher = hashlib.sha256()
    with safe_open(file, "numpy") as weights:
        for name in sorted(weights.keys(), key=str.encode):
            part = weights.get_slice(name)
            shape = ",".join(map(str, part.get_shape()))
            hasher.update(b"\0".join([name.encode(), part.get_dtype().encode(), shape.encode(), b""]))
            hasher.update(weights.get_tensor(name).tobytes(order="C"))
    return hasher.hexdigest()


def test_anybody_can_compute_the_weights_digest_from_an_exported_file(
    drills: Drills, calm: dict[str, Any], tmp_path: Path
) -> None:
    """The contract's text, applied to the file by another program, gives the digest that the ranks reported."""
    out = tmp_path / "weights.safetensors"
    ended = openclaw("export", "calm", "--out", out, "--json", home=drills.home)
    assert ended.status == 0, ended.err
    assert list(ended.document) == PROOF_FIELDS
    assert ended.document == {
        "run": "calm",
        "step": 40,
        "weights_digest": calm["weights_digest"],
        "state_digest": calm["state_digest"],
        "ok": True,
    }
    assert digest_of(out) == calm["weights_digest"]
    assert list(tmp_path.iterdir()) == [out]


def test_a_past_step_can_be_taken_out_and_proven(drills: Drills, calm: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "weights.safetensors"
    ended = openclaw("export", "calm", "--step", "33", "--out", out, home=drills.home)
    assert ended.status == 0, ended.err
    assert ended.out.splitlines() == [
        f"exported step 33 to {out}",
        f"weights digest  {digest_of(out)}",
        ended.out.splitlines()[2],
    ]
    assert digest_of(out) != calm["weights_digest"]
    proven = openclaw("verify", "calm", "--step", "33", "--json", home=drills.home)
    assert proven.status == 0, proven.err
    assert list(proven.document) == PROOF_FIELDS
    assert proven.document["weights_digest"] == digest_of(out)


def test_a_flipped_byte_in_every_file_of_two_targets_changes_nothing(
    drills: Drills, calm: dict[str, Any], copied: list[Path], tmp_path: Path
) -> None:
    """seaweedfs/seaweedfs#7832: no damaged byte is believed; any two of five may be damaged throughout."""
    for target in (copied[0], copied[3]):
        flip_a_byte_in_every_file(target)
    ended = ask(drills, "verify", copied, "--json")
    assert ended.status == 0, ended.err
    assert ended.document["ok"] is True
    assert ended.document["state_digest"] == calm["state_digest"]
    for index in (0, 3):
        assert f"openclaw: warning: target {index} ({copied[index].as_uri()})" in ended.err
    for index in (1, 2, 4):
        assert f"target {index}" not in ended.err
    out = tmp_path / "weights.safetensors"
    assert ask(drills, "export", copied, "--out", out).status == 0
    assert digest_of(out) == calm["weights_digest"]


def test_three_damaged_targets_are_status_1_and_one_line(drills: Drills, copied: list[Path], tmp_path: Path) -> None:
    """seaweedfs/seaweedfs#7832: more than can be repaired fails loudly, with nothing written."""
    for target in copied[1:4]:
        flip_a_byte_in_every_file(target)
    out = tmp_path / "weights.safetensors"
    for ended in (ask(drills, "verify", copied), ask(drills, "export", copied, "--out", out)):
        assert (ended.status, ended.out) == (1, "")
        assert len(ended.err.splitlines()) == 1
        for index in (1, 2, 3):
            assert f"target {index} " in ended.complaint
    assert not out.exists()


def test_damaged_stripes_of_three_targets_are_named_by_step(drills: Drills, copied: list[Path]) -> None:
    """HarperFast/harper#2016: damage in the middle of the log is an error that names the steps, never its end."""
    groups = sorted((copied[0] / "calm" / "log").glob("*/*"), key=lambda group: int(group.name.partition(".")[0]))
    *_, inner, _ = groups  # how many there are depends on how fast they went into storage
    first, last = inner.name.split(".")[1].split("-")
    assert int(last) < STEPS
    for target in copied[:3]:
        (stripe,) = (target / inner.relative_to(copied[0])).iterdir()
        data = stripe.read_bytes()
        stripe.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    ended = ask(drills, "verify", copied)
    assert (ended.status, ended.out) == (1, "")
    assert re.search(rf"\b{first}\b.*\b{last}\b", ended.complaint)


@pytest.mark.parametrize("out", ["/proc/weights.safetensors", "."])
def test_a_place_that_cannot_be_written_is_status_2(drills: Drills, calm: dict[str, Any], out: str) -> None:
    ended = openclaw("export", "calm", "--out", out, home=drills.home)
    assert (ended.status, ended.out) == (2, "")
    assert f"--out '{out}'" in ended.complaint


def test_an_export_to_a_full_disk_leaves_nothing_half_written(
    drills: Drills, calm: dict[str, Any], tmp_path: Path
) -> None:
    """pytorch/pytorch#10577: an older file of that name stays as it was."""
    out = tmp_path / "weights.safetensors"
    out.write_text("an older export")
    limited = ("prlimit", f"--fsize={FILE_LIMIT_BYTES}", *OPENCLAW)
    ended = openclaw("export", "calm", "--out", out, home=drills.home, program=limited)
    assert (ended.status, ended.out) == (1, "")
    assert str(out) in ended.complaint
    assert list(tmp_path.iterdir()) == [out]
    assert out.read_text() == "an older export"


def test_a_run_found_by_its_targets_alone_goes_on_elsewhere(
    drills: Drills, calm: dict[str, Any], copied: list[Path], tmp_path: Path
) -> None:
    """Another machine, whose index knows nothing, reads the same run by its job."""
    job = TrainJob.load(Path(__file__).parent / "drill" / "drill.yaml", ["run=calm"]).document()
    job["store"]["targets"] = [target.as_uri() for target in copied]
    file = tmp_path / "job.json"
    file.write_text(json.dumps({name: value for name, value in job.items() if name != "folder"}))
    shutil.copy2(Path(__file__).parent / "drill" / "drill_recipe.py", tmp_path)
    ended = openclaw("verify", file, "--json", home=tmp_path / "home")
    assert ended.status == 0, ended.err
    assert ended.document["state_digest"] == calm["state_digest"]
