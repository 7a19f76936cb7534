"""The home folder, the index of runs, and what a command's RUN means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from openclaw_tasks.config.home import home, known_runs, read_entry, resolve_run, run_folder, write_entry
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.errors import DamagedError, JobError


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_HOME", str(tmp_path / "home"))


def make_job(run: str = "a-run", **changes: object) -> TrainJob:
    return TrainJob.parse({"run": run, "recipe": "m:C", "steps": 20, "global_batch": 8, **changes})


def test_home_is_the_variable_or_a_folder_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert home() == tmp_path / "home"
    assert run_folder("x") == tmp_path / "home" / "runs" / "x"
    monkeypatch.setenv("HOME", "/home/me")
    for unset in ("", None):
        if unset is None:
            monkeypatch.delenv("OPENCLAW_HOME")
        else:
            monkeypatch.setenv("OPENCLAW_HOME", unset)
        assert home() == Path("/home/me/.openclaw")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENCLAW_HOME", "relative")
    assert home() == tmp_path / "relative"
    monkeypatch.setenv("OPENCLAW_HOME", "~no-such-user/x")
    with pytest.raises(JobError, match="OPENCLAW_HOME='~no-such-user/x'"):
        home()


def test_an_entry_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert known_runs() == []
    job = make_job()
    entry = write_entry(job, state="running", step=7)
    assert read_entry("a-run") == entry
    assert (entry.state, entry.step, entry.steps) == ("running", 7, 20)
    assert TrainJob.parse(entry.job) == job
    write_entry(make_job("b.2"), state="finished", step=20)
    assert known_runs() == ["a-run", "b.2"]
    assert not list((tmp_path / "home" / "index").glob(".*"))


def test_an_entry_that_cannot_be_read_is_damaged_and_not_absent(tmp_path: Path) -> None:
    write_entry(make_job(), state="running", step=7)
    path = tmp_path / "home" / "index" / "a-run.json"
    whole = path.read_bytes()
    other = json.dumps({**json.loads(whole), "run": "another"}).encode()
    for data in (b"", whole[:-9], b"[]", b"{}", b"\xff", other):
        path.write_bytes(data)
        with pytest.raises(DamagedError, match="a-run"):
            read_entry("a-run")
    assert read_entry("never-run") is None
    assert read_entry("../x") is None


def test_a_home_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where the folder should be")
    with pytest.raises(JobError, match="OPENCLAW_HOME"):
        write_entry(make_job(), state="running", step=0)
    assert known_runs() == []


def test_run_names_a_run_of_the_index_or_a_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(recipe_args={"price": "$$5"})
    write_entry(job, state="finished", step=20)
    assert resolve_run("a-run") == job
    changed = resolve_run("a-run", ["steps=40", "recipe_args.data=d"])
    assert changed.steps == 40
    assert changed.recipe_args == {"price": "$$5", "data": f"{Path.cwd()}/d"}
    file = tmp_path / "other.yaml"
    file.write_text(yaml.safe_dump({"run": "other", "recipe": "m:C", "steps": 3, "global_batch": 8}))
    assert resolve_run(str(file)).run == "other"
    assert resolve_run("tiny").run == "tiny"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-run").mkdir()
    assert resolve_run("a-run") == job, "a folder of that name is not a job file"
    assert resolve_run("other.yaml").run == "other"
    with pytest.raises(JobError, match="did you mean 'a-run'"):
        resolve_run("a-rum")
    with pytest.raises(JobError, match="is no file"):
        resolve_run("no/such.yaml")
