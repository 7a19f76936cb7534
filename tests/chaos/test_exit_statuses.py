"""The exit status of every end that the contract names, through the command. Where each of its sentences is shown:

0 done: test_flow_faults (trained; trained already), test_flow_storage (export, verify), test_cli_status (runs, ui).
1 a run that failed: test_flow_gang (a batch that kills every gang), test_flow_endings (cancelled).
1 lost more than it can repair: test_flow_refusals, test_flow_storage (targets gone, damaged); here (they hang).
2 input or environment that cannot be, nothing changed: test_cli_status, test_bad_jobs_property; here (an interface).
137 after kill-flow: test_flow_endings.
First start, every target must answer and be writable: test_flow_refusals (cannot be made); here (hangs, read-only).
Later starts and readers, up to m missing, unreachable or damaged is a warning and more is 1: test_flow_refusals (a
    start, missing), test_flow_storage (readers, damaged); here (the others).
A run that the index knows and no target does is 1: test_cli_status, test_flow_refusals.
A recipe that cannot be loaded or built is 2: test_flow_refusals (loaded); here (built).
One that raises in a step is 1 with its own traceback: test_flow_refusals.
A start refused because the run is live is 2: test_flow_endings.
What is fixed for a run's life, a difference is 2: test_cli_status (each key); here (the targets' identities).
Data differing from the last start is 2: test_flow_refusals.
A module `flows` that is not ours is 2: test_cli_status.
130 and 143 (README): test_flow_endings.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Ended, openclaw
from drills import JOB, STEPS, Drills

from openclaw_tasks.storage.digested_json import write_digested
from openclaw_tasks.storage.store import TARGET_KEY

pytestmark = [pytest.mark.chaos, pytest.mark.flow]

DEADLINE = "1s"


class Elsewhere:
    """The undisturbed run's targets, copied, and a home whose index does not know them: all that happens stays here."""

    def __init__(self, drills: Drills, folder: Path) -> None:
        self.drills = drills
        self.home = folder / "home"
        self.targets = [shutil.copytree(target, folder / target.name) for target in drills.targets("calm")]
        self.folder = folder
        self.out = folder / "weights.safetensors"
        self.steps = STEPS + 4

    def run(self, command: str, *sets: str, targets: list[Path] | None = None) -> Ended:
        places = [target.as_uri() for target in targets or self.targets]
        values = ["run=calm", f"store.targets={places}", f"store.deadline={DEADLINE}", f"steps={self.steps}", *sets]
        words = [word for value in values for word in ("--set", value)]
        more = ["--out", str(self.out)] if command == "export" else []
        server = {"PREFECT_API_URL": self.drills.api.url}
        return openclaw(command, JOB, *words, *more, home=self.home, environment=server)


@pytest.fixture
def elsewhere(drills: Drills, calm: dict[str, Any], tmp_path: Path) -> Elsewhere:
    return Elsewhere(drills, tmp_path)


def take_away(target: Path) -> None:
    shutil.rmtree(target)


def let_hang(target: Path) -> None:
    """As a network file system whose server is away: the call does not return."""
    (target / TARGET_KEY).unlink()
    os.mkfifo(target / TARGET_KEY)


def damage(target: Path) -> None:
    """One bit in the middle of every file."""
    for path in target.rglob("*"):
        if path.is_file():
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def warned_of(ended: Ended) -> list[int]:
    """The targets that standard error names."""
    return [index for index in range(5) if f"target {index} " in ended.err]


WAYS = [
    pytest.param("train", let_hang, id="start, unreachable"),
    pytest.param("train", damage, id="start, damaged"),
    pytest.param("verify", take_away, id="verify, missing"),
    pytest.param("export", let_hang, id="export, unreachable"),
]


@pytest.mark.parametrize(("command", "strike"), WAYS)
def test_two_bad_targets_are_a_warning_and_three_are_status_1(
    elsewhere: Elsewhere, calm: dict[str, Any], command: str, strike: Callable[[Path], None]
) -> None:
    for index in (0, 3):
        strike(elsewhere.targets[index])
    ended = elsewhere.run(command)
    assert ended.status == 0, ended.err
    assert warned_of(ended) == [0, 3], ended.err
    if command == "train":
        assert f"goes on after step {STEPS} of {elsewhere.steps}" in ended.err
        assert f"finished at step {elsewhere.steps}" in ended.err
        elsewhere.steps += 1
    else:
        assert calm["weights_digest"] in ended.out
    elsewhere.out.unlink(missing_ok=True)
    strike(elsewhere.targets[2])
    before = contents(elsewhere.targets[1])
    ended = elsewhere.run(command)
    assert (ended.status, ended.out) == (1, ""), ended.err
    assert len(ended.err.splitlines()) == 1
    for index in (0, 2, 3):
        assert f"target {index} ({elsewhere.targets[index].as_uri()})" in ended.complaint
    assert not elsewhere.out.exists()
    assert contents(elsewhere.targets[1]) == before


def refused(ended: Ended, home: Path, *says: str) -> None:
    """Status 2, one line with all of `says`, and nothing of a run in the home."""
    assert (ended.status, ended.out) == (2, ""), ended.err
    for words in says:
        assert words in ended.complaint
    assert "Traceback" not in ended.err
    left = [name for name in contents(home) if "/.prefect" not in name]  # Prefect's own home is the user's
    assert [name for name in left if not name.endswith("/runs")] == []


def unwritable(folder: Path) -> Path:
    """A folder that is there and takes nothing, not even from root."""
    if not os.geteuid():
        return Path("/sys/kernel")
    folder.mkdir(mode=0o500)
    return folder


def test_a_first_start_needs_targets_that_answer(elsewhere: Elsewhere) -> None:
    """One that hangs: refused at its deadline, and what was made in the others is gone."""
    fresh = [elsewhere.folder / "fresh" / f"t{index}" for index in range(4)]
    hanging = elsewhere.folder / "hanging"
    hanging.mkdir()
    os.mkfifo(hanging / TARGET_KEY)
    ended = elsewhere.run("train", "run=first", targets=[*fresh, hanging])
    refused(ended, elsewhere.home, "a first start needs every target", "target 4 ", "no answer within 1 s")
    assert not fresh[0].parent.exists()


def test_a_first_start_needs_targets_that_can_be_written(elsewhere: Elsewhere) -> None:
    fresh = [elsewhere.folder / "fresh" / f"t{index}" for index in range(4)]
    closed = unwritable(elsewhere.folder / "closed")
    ended = elsewhere.run("train", "run=first", targets=[*fresh, closed])
    refused(ended, elsewhere.home, "a first start needs every target", f"target 4 ({closed.as_uri()})")
    assert not fresh[0].parent.exists()


def test_targets_in_another_order_are_status_2(elsewhere: Elsewhere) -> None:
    targets = elsewhere.targets
    ended = elsewhere.run("train", targets=[targets[1], targets[0], *targets[2:]])
    refused(ended, elsewhere.home, "store.targets", targets[1].as_uri(), "restore the order")


def test_a_target_of_another_run_in_place_of_ones_own_is_status_2(elsewhere: Elsewhere) -> None:
    """The key and both identities are named; nothing is written to any of them."""
    place = elsewhere.targets[2] / TARGET_KEY
    old = json.loads(place.read_bytes())["uuid"]
    new = uuid.uuid4().hex
    place.write_bytes(write_digested({"format": 1, "uuid": new, "index": 2}))
    before = [contents(target) for target in elsewhere.targets]
    ended = elsewhere.run("train")
    refused(ended, elsewhere.home, "store.targets", f"{new} instead of {old}")
    assert [contents(target) for target in elsewhere.targets] == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param("recipe_args.width=-1", ["Drill.model"], id="its model raises"),
        pytest.param(
            "recipe_args.wdth=1", ["'wdth'", "did you mean 'width'"], id="its constructor has no such argument"
        ),
        pytest.param("recipe_args.width=wide", ["Drill"], id="its arguments are of another type"),
    ],
)
def test_a_recipe_that_cannot_be_built_is_status_2(elsewhere: Elsewhere, change: str, says: list[str]) -> None:
    fresh = [elsewhere.folder / "fresh" / f"t{index}" for index in range(5)]
    refused(elsewhere.run("train", "run=first", change, targets=fresh), elsewhere.home, *says)
    assert not fresh[0].parent.exists()


@pytest.mark.parametrize("host", ["192.0.2.1", "a..b"])
def test_an_interface_that_this_machine_does_not_have_is_status_2(elsewhere: Elsewhere, host: str) -> None:
    ended = elsewhere.run("train", "run=first", f"cluster.host={host}")
    refused(ended, elsewhere.home, f"cluster.host='{host}'", "name an address or a host name of this machine")


@pytest.mark.parametrize("command", ["verify", "export"])
def test_a_step_that_the_run_does_not_have_is_status_2(elsewhere: Elsewhere, command: str) -> None:
    more = ["--out", str(elsewhere.out)] if command == "export" else []
    ended = openclaw(command, "calm", "--step", "41", *more, home=elsewhere.drills.home)
    assert (ended.status, ended.out) == (2, ""), ended.err
    assert "--step 41" in ended.complaint
    assert "0 to 40" in ended.complaint
    assert not elsewhere.out.exists()
