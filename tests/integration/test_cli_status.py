"""What `openclaw` says, and ends with, where no training is needed: refusals in one clear line, and nothing changed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from commands import MODULE, Ended, Started, openclaw

from openclaw_tasks.config.home import write_entry
from openclaw_tasks.config.job import FIXED_KEYS, TrainJob

JOB = """
run: quick
recipe: my_recipe:Mine
recipe_args: {width: 8}
steps: 30
global_batch: 8
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def refused(home: Path, *words: str | os.PathLike[str], naming: Sequence[str], status: int = 2) -> Ended:
    """Run a command that must be refused: one line with all of `naming`, nothing on standard output or on disk."""
    before = everything(home)
    ended = openclaw(*words, home=home)
    assert ended.status == status, ended.err
    assert ended.out == ""
    for name in naming:
        assert name in ended.complaint
    assert "Traceback" not in ended.err
    assert everything(home) == before
    return ended


def everything(folder: Path) -> dict[str, bytes | None]:
    """All that is below a folder, with what it holds."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def known_run(home: Path, job_file: Path, monkeypatch: pytest.MonkeyPatch, *, state: str = "running") -> TrainJob:
    """A run that the index knows and no target does."""
    monkeypatch.setenv("OPENCLAW_HOME", str(home))
    job = TrainJob.load(job_file)
    write_entry(job, state=state, step=job.steps if state == "finished" else 20)
    return job


@pytest.mark.parametrize(
    ("words", "naming"),
    [
        (["bogus"], ["bogus"]),
        (["train"], ["JOB", "--help"]),
        (["train", "nowhere.yaml"], ["nowhere.yaml", "tiny"]),
        (["train", "tinny"], ["tinny", "did you mean 'tiny'"]),
        (["train", "tiny", "--set", "steps"], ["steps", "--set key=value"]),
        (["train", "tiny", "--set", "stps=3"], ["stps", "did you mean 'steps'"]),
        (["train", "tiny", "--set", "store.redundncy=1"], ["redundncy", "did you mean", "redundancy"]),
        (["train", "tiny", "--set", "steps=many"], ["steps", "many"]),
        (["train", "tiny", "--set", "logical_shards=3"], ["logical_shards=3", "power of two"]),
        (["train", "tiny", "--set", "store.redundancy=3", "--set", "store.targets=['file:///a']"], ["redundancy=3"]),
        (["train", "tiny", "--set", "segment_steps=40"], ["segment_steps=40", "max_rollback_steps=50"]),
        (["train", "tiny", "--set", "store.targets=['s3://bucket/a']"], ["s3", "file"]),
        (["train", "tiny", "--fault", "kill-rank:1@x"], ["kill-rank:1@x", "kill-rank:RANK@STEP"]),
        (["train", "tiny", "--fault", "kill-rnk:1@4"], ["kill-rnk", "did you mean 'kill-rank'"]),
        (["train", "tiny", "--fault", "kill-rank:2@4"], ["kill-rank:2@4", "cluster.workers has 2"]),
        (["train", "tiny", "--fault", "delete-target:5@4"], ["delete-target:5@4", "store.targets has 5"]),
        (["train", "tiny", "--fault", "kill-flow@61"], ["kill-flow@61", "steps=60"]),
        (["train", "tiny", "--report", "nowhere/report.json"], ["nowhere/report.json", "there is no folder"]),
        (["train", "tiny", "--report", "/"], ["--report '/'", "is a folder"]),
        (["export", "tiny"], ["--out"]),
        (["export", "tiny", "--out", "nowhere/w.safetensors"], ["nowhere", "there is no folder"]),
        (["export", "tiny", "--out", "w.safetensors"], ["tiny", "has not been trained", "openclaw train"]),
        (["verify", "tiny"], ["tiny", "has not been trained", "openclaw train"]),
        (["verify", "nosuch"], ["nosuch", "no job file and no run"]),
        (["verify", "tiny", "--step", "soon"], ["--step"]),
        (["demo", "--report", "nowhere/report.json"], ["nowhere/report.json", "there is no folder"]),
    ],
)
def test_input_that_cannot_be_is_status_2_with_one_line_and_changes_nothing(
    home: Path, words: list[str], naming: list[str]
) -> None:
    refused(home, *words, naming=naming)
    assert not home.exists()


COMMANDS = ("train", "export", "verify", "runs", "demo", "ui")


def test_help_names_every_command(home: Path) -> None:
    ended = openclaw("--help", home=home)
    assert ended.status == 0
    for name in COMMANDS:
        assert f"\n  {name} " in ended.out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_is_quick_to_come(home: Path, command: str) -> None:
    """What takes seconds to import is not imported for it."""
    ended = openclaw(command, "--help", home=home, program=(sys.executable, "-X", "importtime", *MODULE[1:]))
    assert ended.status == 0
    assert f"Usage: openclaw {command} " in ended.out.replace("python -m openclaw_tasks.cli.main", "openclaw")
    imported = {line.rpartition("|")[2].strip() for line in ended.err.splitlines()}
    assert "openclaw_tasks.cli.main" not in imported  # run as __main__
    assert imported.isdisjoint({"torch", "prefect", "distributed", "numpy"})


def test_the_command_alone_shows_its_help(home: Path) -> None:
    ended = openclaw(home=home)
    assert ended.status == 2
    assert ended.err.startswith("Usage: openclaw")


def test_a_key_of_the_job_file_that_is_unknown_is_named_with_the_nearest(home: Path, job_file: Path) -> None:
    job_file.write_text(JOB + "sed: 3\n")
    refused(home, "train", job_file, naming=["job.yaml", "'sed'", "did you mean 'seed'"])


def test_an_undefined_variable_in_the_job_file_is_named(home: Path, job_file: Path) -> None:
    job_file.write_text(JOB + "store: {targets: ['file://$NO_SUCH_DISK/t0'], redundancy: 0}\n")
    refused(home, "train", job_file, naming=["store.targets[0]", "NO_SUCH_DISK"])


@pytest.mark.parametrize("words", [["train"], ["verify"], ["export", "--out", "w.safetensors"]])
def test_a_run_that_the_index_knows_and_no_target_does_is_status_1_and_no_fresh_start(
    home: Path, job_file: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """awslabs/mountpoint-s3#1422: what cannot be read is never taken for what never was."""
    known_run(home, job_file, monkeypatch)
    command, *options = words
    refused(home, command, job_file, *options, naming=["'quick'", "/t0", "bring them back"], status=1)


def test_a_finished_run_whose_targets_are_gone_is_no_success(
    home: Path, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_run(home, job_file, monkeypatch, state="finished")
    refused(home, "train", job_file, naming=["'quick'", "/t0", "bring them back"], status=1)


CHANGES = {
    "recipe": "my_recipe:Other",
    "recipe_args": "{width: 9}",
    "seed": "1",
    "global_batch": "16",
    "logical_shards": "4",
    "threads_per_rank": "2",
    "clip_norm": "null",
    "codec": "exact",
    "store.redundancy": "1",
    "store.targets": "['file:///a', 'file:///b', 'file:///c', 'file:///d', 'file:///e', 'file:///f']",
}


@pytest.mark.parametrize("key", FIXED_KEYS)
def test_what_is_fixed_for_a_runs_life_cannot_be_changed(
    home: Path, job_file: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    state = "finished" if key == "seed" else "running"
    old = known_run(home, job_file, monkeypatch, state=state).fixed()
    new = TrainJob.load(job_file, [f"{key}={CHANGES[key]}"]).fixed()
    name = "recipe_args.width" if key == "recipe_args" else key
    before, now = ("8", "9") if key == "recipe_args" else (str(old[key]), str(new[key]))
    values = [value.replace("None", "null") for value in (before, now)]
    refused(home, "train", job_file, "--set", f"{key}={CHANGES[key]}", naming=[name, *values, "'quick'"])


def test_a_run_can_be_named_by_its_job_file_or_by_its_name(
    home: Path, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_run(home, job_file, monkeypatch)
    for name in ("quick", str(job_file)):
        refused(home, "verify", name, naming=["'quick'", "bring them back"], status=1)


def test_runs_lists_what_the_index_knows(home: Path, job_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "openclaw train tiny" in openclaw("runs", home=home).out
    assert openclaw("runs", "--json", home=home).document == []
    known_run(home, job_file, monkeypatch)
    assert openclaw("runs", "--json", home=home).document == [
        {"run": "quick", "step": 20, "steps": 30, "state": "running"}
    ]
    (line,) = openclaw("runs", home=home).out.splitlines()
    assert line.split()[:5] == ["quick", "20", "/", "30", "running"]


def test_one_damaged_entry_does_not_hide_the_other_runs(
    home: Path, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_run(home, job_file, monkeypatch)
    (home / "index" / "worn.json").write_text("{")
    ended = openclaw("runs", "--json", home=home)
    assert ended.status == 0
    assert [run["run"] for run in ended.document] == ["quick"]
    assert "openclaw: warning: " in ended.err
    assert "worn.json" in ended.err
    refused(home, "verify", "worn", naming=["worn.json", "job file"], status=1)


@pytest.mark.parametrize("words", [["train", "tiny"], ["ui"]])
def test_a_home_that_cannot_be_made_is_status_2(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "file").write_text("not a folder")
    with Started(
        *words, home=tmp_path / "home", environment={"OPENCLAW_HOME": str(tmp_path / "file" / "x")}
    ) as command:
        ended = command.end()
    assert ended.status == 2
    assert str(tmp_path / "file" / "x") in ended.complaint
    assert "OPENCLAW_HOME" in ended.complaint


@pytest.mark.parametrize("made", ["flows/train.py", "flows/__init__.py", "flows.py"])
def test_a_module_flows_that_is_not_ours_is_status_2_naming_its_place(home: Path, tmp_path: Path, made: str) -> None:
    other = tmp_path / "elsewhere" / made
    other.parent.mkdir(parents=True)
    other.touch()
    ended = openclaw("train", "tiny", home=home, environment={"PYTHONPATH": str(tmp_path / "elsewhere")})
    assert ended.status == 2
    assert str(tmp_path / "elsewhere" / "flows") in ended.complaint
    assert "rename" in ended.complaint
    assert not home.exists()


def test_the_folder_one_stands_in_shadows_nothing(home: Path, tmp_path: Path) -> None:
    (tmp_path / "here" / "flows").mkdir(parents=True)
    (tmp_path / "here" / "flows" / "__init__.py").touch()
    ended = openclaw("train", "tiny", "--fault", "boom@1", home=home, folder=tmp_path / "here")
    assert "boom" in ended.complaint
    ended = openclaw("runs", "--json", home=home, folder=tmp_path / "here", program=MODULE)
    assert (ended.status, ended.document) == (0, [])


def test_debug_shows_where_an_error_came_from(home: Path) -> None:
    ended = openclaw("train", "tinny", "--debug", home=home)
    assert ended.status == 2
    assert "Traceback" in ended.err
    assert ended.complaint.startswith("JOB='tinny'")


@pytest.mark.flow
def test_ui_serves_until_ctrl_c_and_leaves_nothing(prepared_home: Path) -> None:
    with Started("ui", home=prepared_home) as command:
        command.wait_for(lambda: command.process.poll() is not None or "http://" in command.out, "address")
        os.killpg(command.process.pid, signal.SIGINT)
        ended = command.end()
        assert ended.status == 0, ended.err
        assert ended.err == ""
        command.wait_gone(10)


def test_ui_points_to_the_server_that_the_user_has_configured(home: Path) -> None:
    ended = openclaw("ui", home=home, environment={"PREFECT_API_URL": "http://127.0.0.1:9/api"})
    assert ended.status == 0
    assert "http://127.0.0.1:9" in ended.out
    assert not home.exists()


def test_with_json_a_refusal_leaves_standard_output_empty(home: Path) -> None:
    for words in (["train", "tinny"], ["verify", "tiny"], ["export", "tiny", "--out", "x"]):
        refused(home, *words, "--json", naming=["tin"])
