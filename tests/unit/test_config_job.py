"""The job file: what it means, and what is refused."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from openclaw_tasks.config.job import FIXED_KEYS, TrainJob, compare_fixed
from openclaw_tasks.config.source import shipped_jobs
from openclaw_tasks.errors import JobError

BASE: dict[str, Any] = {
    "run": "a-run",
    "recipe": "my_package.my_module:MyRecipe",
    "steps": 200,
    "global_batch": 64,
}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_HOME", str(tmp_path / "home"))


def write_job(folder: Path, document: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return path


def refusal(path: Path | str, overrides: Any = ()) -> str:
    with pytest.raises(JobError) as caught:
        TrainJob.load(path, overrides)
    message = str(caught.value)
    assert message.isprintable(), message
    assert caught.value.exit_status == 2
    return message


def test_the_documented_job_file_loads_with_its_paths_taken_from_its_folder(tmp_path: Path) -> None:
    path = write_job(
        tmp_path / "jobs",
        """
run: stdlib-lm
recipe: openclaw_tasks.recipes.language:ByteLM
recipe_args: {data: "texts/**/*.txt", width: 128, layers: 4, heads: 4, context: 128}
seed: 17
steps: 200
segment_steps: 25
global_batch: 64
logical_shards: 8
threads_per_rank: 1
clip_norm: 1.0
codec: bf16
cluster: {workers: 2}
store:
  targets: ["file://runs/t0", "file://runs/t1", "file://runs/t2", "file://runs/t3", "file://runs/t4"]
  redundancy: 2
  group_steps: 8
  deadline: 10s
fault_tolerance:
  max_unprotected_bytes: 1GB
  lease: 500ms
""",
    )
    job = TrainJob.load(path)
    assert job.recipe_args["data"] == f"{tmp_path}/jobs/texts/**/*.txt"
    assert job.store.targets[4] == f"file://{tmp_path}/jobs/runs/t4"
    assert job.store.deadline == 10.0
    assert job.fault_tolerance.lease == 0.5
    assert job.fault_tolerance.max_unprotected_bytes == 10**9
    assert job.folder == f"{tmp_path}/jobs"


@pytest.mark.parametrize("name", ["demo", "tiny"])
def test_shipped_jobs_load_and_write_under_the_home_folder(name: str, tmp_path: Path) -> None:
    job = TrainJob.load(name)
    assert job.store.targets == [f"file://{tmp_path}/home/runs/{name}/t{index}" for index in range(5)]
    assert job.global_batch == 16
    assert job.steps == {"demo": 120, "tiny": 60}[name]
    assert "data" not in job.recipe_args
    moved = TrainJob.load(name, {"run": "mine"})
    assert moved.store.targets[0] == f"file://{tmp_path}/home/runs/mine/t0"


def test_exactly_the_documented_jobs_are_shipped() -> None:
    assert shipped_jobs() == ["demo", "tiny"]


def test_without_targets_as_many_folders_are_chosen_as_the_redundancy_needs(tmp_path: Path) -> None:
    for redundancy, count in [(0, 1), (1, 3), (2, 5)]:
        job = TrainJob.load(write_job(tmp_path, {**BASE, "store": {"redundancy": redundancy}}))
        assert job.store.targets == [f"file://{tmp_path}/home/runs/a-run/t{index}" for index in range(count)]


def test_a_job_survives_json_and_a_second_reading_expands_nothing(tmp_path: Path) -> None:
    arguments = {
        "price": "$$5 and $$HOME",
        "data": "a/*.txt",
        "depth": 3,
        "rate": 0.5,
        "on": [True, None, {"x": 1}],
    }
    job = TrainJob.load(write_job(tmp_path, {**BASE, "recipe_args": arguments}))
    assert job.recipe_args["price"] == "$5 and $HOME"
    assert TrainJob.from_json(job.to_json()) == job
    assert TrainJob.parse(job.document()) == job


def test_a_job_may_be_made_in_python_without_a_file() -> None:
    job = TrainJob(**BASE, recipe_args={"width": 8})
    assert job.folder is None
    assert len(job.store.targets) == 5
    assert TrainJob.from_json(job.to_json()) == job
    with pytest.raises(ValidationError, match="is relative"):
        TrainJob(**BASE, store={"targets": ["file://t0"], "redundancy": 0})


def test_home_and_variables_expand_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("PLACE", "/mnt/big")
    monkeypatch.setenv("NUMBER", "7")
    document = {
        **BASE,
        "run": "run-${NUMBER}",
        "recipe_args": {
            "path": "~/texts",
            "note": "~ is not a path here, ~me neither",
            "other": ["$PLACE/x"],
        },
        "store": {
            "targets": ["file://$PLACE/t0", "file://~/t1", "file://$OPENCLAW_HOME/t2"],
            "redundancy": 1,
        },
    }
    job = TrainJob.load(write_job(tmp_path, document))
    assert job.run == "run-7"
    assert job.recipe_args == {
        "path": "/home/me/texts",
        "note": "~ is not a path here, ~me neither",
        "other": ["/mnt/big/x"],
    }
    assert job.store.targets == ["file:///mnt/big/t0", "file:///home/me/t1", f"file://{tmp_path}/home/t2"]
    monkeypatch.delenv("OPENCLAW_HOME")
    assert TrainJob.load(write_job(tmp_path, document)).store.targets[2] == "file:///home/me/.openclaw/t2"


def test_an_undefined_variable_is_named(tmp_path: Path) -> None:
    message = refusal(write_job(tmp_path, {**BASE, "recipe_args": {"where": "$NO_SUCH_VARIABLE/x"}}))
    assert "recipe_args.where" in message
    assert "'NO_SUCH_VARIABLE' is not defined" in message
    assert "$$" in message


def test_which_recipe_arguments_are_paths(tmp_path: Path) -> None:
    arguments = {
        "data": ["a.txt", "/b.txt", "hf://c"],
        "labels_file": "l.csv",
        "cache_dir": "cache",
        "weights_path": "../w.bin",
        "nested": {"path": "p", "name": "n"},
        "here": "./h",
        "style": "a/b",
        "empty_path": "",
    }
    job = TrainJob.load(write_job(tmp_path, {**BASE, "recipe_args": arguments}))
    assert job.recipe_args == {
        "data": [f"{tmp_path}/a.txt", "/b.txt", "hf://c"],
        "labels_file": f"{tmp_path}/l.csv",
        "cache_dir": f"{tmp_path}/cache",
        "weights_path": f"{tmp_path}/../w.bin",
        "nested": {"path": f"{tmp_path}/p", "name": "n"},
        "here": f"{tmp_path}/h",
        "style": "a/b",
        "empty_path": "",
    }


def test_a_relative_job_path_and_a_linked_file_keep_the_folder_they_were_named_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_job(tmp_path / "revision-1", {**BASE, "recipe_args": {"data": "x"}})
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / "job.yaml").symlink_to(tmp_path / "revision-1" / "job.yaml")
    monkeypatch.chdir(tmp_path)
    assert TrainJob.load("mounted/job.yaml").recipe_args["data"] == f"{mounted}/x"


def test_set_changes_keys_and_its_values_are_yaml(tmp_path: Path) -> None:
    path = write_job(tmp_path, {**BASE, "recipe_args": {"width": 8, "deep": {"a": 1, "b": 2}}})
    job = TrainJob.load(
        path,
        [
            "steps=10",
            "store.redundancy=1",
            "recipe_args.deep.a=[1, x=y]",
            "clip_norm=null",
            "recipe_args.data=d",
        ],
    )
    assert (job.steps, job.store.redundancy, job.clip_norm) == (10, 1, None)
    assert job.recipe_args == {"width": 8, "deep": {"a": [1, "x=y"], "b": 2}, "data": f"{tmp_path}/d"}
    assert TrainJob.load(path, {"recipe_args": {"depth": 2}, "seed": "5"}).recipe_args == {"depth": 2}


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("steps", ["'steps'", "--set key=value"]),
        ("=3", ["not a key"]),
        ("steps..x=3", ["not a key"]),
        ("stepz=3", ["'stepz'", "3", "did you mean 'steps'?"]),
        ("store.redundency=1", ["'redundency' in store", "did you mean 'redundancy'?"]),
        ("steps.x=3", ["steps", "200", "holds no keys"]),
        ("steps={", ["--set steps", "line 1"]),
        ("folder=/x", ["'folder'"]),
        ("recipe_args.data=$NO_SUCH_VARIABLE", ["recipe_args.data", "NO_SUCH_VARIABLE"]),
    ],
)
def test_a_wrong_set_is_refused(override: str, parts: list[str], tmp_path: Path) -> None:
    message = refusal(write_job(tmp_path, BASE), [override])
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"segment_steps": 26}, ["segment_steps=26", "half of fault_tolerance.max_rollback_steps=50"]),
        ({"global_batch": 63}, ["global_batch=63", "logical_shards=8"]),
        ({"logical_shards": 12, "global_batch": 60}, ["logical_shards=12", "power of two"]),
        ({"cluster": {"workers": 9}}, ["cluster.workers=9", "logical_shards=8"]),
        (
            {"store": {"group_steps": 65}},
            ["store.group_steps=65", "fault_tolerance.max_unprotected_steps=64"],
        ),
        (
            {"store": {"targets": [f"file:///t{i}" for i in range(4)]}},
            ["store.redundancy=2", "4 of store.targets", "at least 5", "at most 1"],
        ),
        (
            {"store": {"targets": ["file:///a", "file:///b", "file:///x/../a"], "redundancy": 1}},
            ["store.targets[0]", "store.targets[2]"],
        ),
        (
            {"store": {"targets": ["file:///a", "file:///b", "file:///a/c"], "redundancy": 1}},
            ["store.targets[2]='file:///a/c'", "store.targets[0]='file:///a'"],
        ),
        ({"store": {"targets": ["file:///"], "redundancy": 0}}, ["store.targets[0]", "root"]),
        (
            {"store": {"targets": ["/mnt/t0"], "redundancy": 0}},
            ["store.targets[0]='/mnt/t0'", "'file:///mnt/t0'"],
        ),
        ({"store": {"targets": ["ftp://h/t0"], "redundancy": 0}}, ["store.targets[0]='ftp://h/t0'", "'ftp'"]),
        ({"store": {"targets": []}}, ["store.targets=[]"]),
        ({"store": {"targets": ["file://~no-such-user/x"], "redundancy": 0}}, ["store.targets[0]", "home"]),
        ({"store": []}, ["store=[]", "mapping"]),
        ({"store": None}, ["store=None", "mapping"]),
        ({"steps": "200"}, ["steps='200'", "valid integer", "steps: 200"]),
        ({"steps": True}, ["steps=True"]),
        ({"steps": 0}, ["steps=0"]),
        ({"steps": 10**30}, [f"steps={10**30}"]),
        ({"seed": -1}, ["seed=-1"]),
        ({"clip_norm": 0}, ["clip_norm=0"]),
        ({"codec": "fp8"}, ["codec='fp8'", "'bf16'"]),
        ({"recipe": "my_module"}, ["recipe='my_module'", "recipe: openclaw_tasks.recipes.language:ByteLM"]),
        ({"run": "../x"}, ["run='../x'", "run: my-run"]),
        ({"run": "x" * 101}, ["run='xxx", "100"]),
        ({"store": {"deadline": "soon"}}, ["store.deadline='soon'", '"500ms"']),
        (
            {"fault_tolerance": {"max_unprotected_bytes": "1 truck"}},
            ["max_unprotected_bytes='1 truck'", '"4GB"'],
        ),
        ({"recipe_args": {"a-b": 1}}, ["recipe_args", "'a-b'"]),
        ({"recipe_args": {"x": [float("nan")]}}, ["recipe_args.x[0]", "not finite"]),
        ({"recipe_args": {"x": 2**63}}, ["recipe_args.x", "64 bits"]),
        ({"folder": "/x"}, ["'folder'"]),
        ({"stepz": 5}, ["unknown key 'stepz' (value 5)", "did you mean 'steps'?"]),
        (
            {"cluster": {"worker": 5}},
            ["unknown key 'worker' in cluster (value 5)", "did you mean 'workers'?"],
        ),
        ({"cluster": {"address": "me:secret@host:8786"}}, ["cluster.address"]),
    ],
)
def test_what_cannot_be_is_refused_with_key_value_and_remedy(
    change: dict[str, Any], parts: list[str], tmp_path: Path
) -> None:
    message = refusal(write_job(tmp_path, {**BASE, **change}))
    for part in [str(tmp_path / "job.yaml"), *parts]:
        assert part in message


@pytest.mark.parametrize("key", BASE)
def test_a_missing_key_is_named_with_an_example(key: str, tmp_path: Path) -> None:
    message = refusal(write_job(tmp_path, {name: value for name, value in BASE.items() if name != key}))
    assert f"the key {key} is missing; add it, for example {key}: " in message
    assert "more)" not in message


def test_the_first_problem_is_told_with_the_number_of_the_others(tmp_path: Path) -> None:
    message = refusal(write_job(tmp_path, {"run": "x", "recipe": 5, "stepz": 3}))
    assert "unknown key 'stepz'" in message
    assert message.endswith("(and 3 more)")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["is empty"]),
        ("# nothing\n", ["is empty"]),
        ("[1, 2]", ["holds a list", "mapping"]),
        ("just words", ["'just words'", "mapping"]),
        ("run: [", ["line 1"]),
        ("run: a\nrun: b\n", ["line 2", "'run' is given twice"]),
        ("run: a\nstore: {redundancy: 1, redundancy: 2}\n", ["line 2", "'redundancy' is given twice"]),
        ("1: a\n", ["line 1", "the key 1", "quotes"]),
        ("run: !!python/object:os.system x\n", ["line 1", "tag"]),
        ("run: !!binary aGk=\n", ["line 1", "tag"]),
        ("run: !!int abc\n", ["line 1", "tag"]),
        ("run: a\n---\nrun: b\n", ["line 2"]),
        ("a: &a [*a]\n", ["line 1"]),
        ('run: "\\UFFFFFFFF"\n', ["YAML"]),
        ("%YAML " + "9" * 5000 + ".1\n---\nrun: a", ["YAML"]),
        ("[" * 5000, ["deep"]),
        ("steps: " + "9" * 5000, ["digits"]),
        ("steps: 0x" + "f" * 5000, ["digits"]),
    ],
)
def test_what_is_no_job_in_yaml_is_refused_with_its_line(text: str, parts: list[str], tmp_path: Path) -> None:
    message = refusal(write_job(tmp_path, text))
    for part in ["job.yaml", *parts]:
        assert part in message


def test_files_that_hold_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"run: caf\xe9\n")
    assert "byte 8 (0xe9) is not UTF-8" in refusal(path)
    path.write_bytes(bytes(range(256)))
    assert "job.yaml" in refusal(path)
    path.write_bytes(b"#" * 1_000_001)
    assert "1000001 bytes" in refusal(path)
    assert "is a folder" in refusal(tmp_path)
    assert "did you mean 'tiny'?" in refusal("tini")
    assert "is no file" in refusal(tmp_path / "none.yaml")
    assert "is no file" in refusal("a\0b")
    assert "is no file" in refusal(path / "below-a-file")
    assert "File name too long" in refusal("x" * 5000)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "no regular file" in refusal(pipe)


def test_a_byte_order_mark_is_no_part_of_the_job(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + yaml.safe_dump(BASE).encode())
    assert TrainJob.load(path).run == "a-run"


def test_yaml_means_what_it_says(tmp_path: Path) -> None:
    """Not YAML 1.1's surprises: `no`, `10:30`, dates and `1e-3`."""
    path = write_job(
        tmp_path,
        """
run: 2026-01-01
recipe: m:C
steps: 010
global_batch: 0x40
clip_norm: 1e-3
recipe_args: {country: no, at: 10:30, day: 2026-01-01, small: 1e-3, yes: on, octal: 0o17, none: ~, text: "1"}
""",
    )
    job = TrainJob.load(path)
    assert (job.run, job.steps, job.global_batch, job.clip_norm) == ("2026-01-01", 10, 64, 1e-3)
    assert job.recipe_args == {
        "country": "no",
        "at": "10:30",
        "day": "2026-01-01",
        "small": 1e-3,
        "yes": "on",
        "octal": 15,
        "none": None,
        "text": "1",
    }


def test_anchors_aliases_and_merges_work(tmp_path: Path) -> None:
    path = write_job(
        tmp_path,
        """
run: a
recipe: m:C
steps: &count 40
global_batch: *count
recipe_args:
  small: &small {width: 8, depth: 2}
  large: {<<: *small, width: 64}
  both: {<<: [{depth: 9}, *small]}
""",
    )
    job = TrainJob.load(path)
    assert job.global_batch == 40
    assert job.recipe_args["large"] == {"width": 64, "depth": 2}
    assert job.recipe_args["both"] == {"width": 8, "depth": 9}


def test_aliases_of_aliases_do_not_fill_the_memory(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    text = yaml.safe_dump(BASE) + "recipe_args:\n  " + "\n  ".join(lines)
    assert "more than 100000 values" in refusal(write_job(tmp_path, text))


def test_a_job_too_large_to_travel_is_refused(tmp_path: Path) -> None:
    """PrefectHQ/prefect#7757: parameters are small references; more than 100 kB is refused with a hint."""
    message = refusal(write_job(tmp_path, {**BASE, "recipe_args": {"rows": list(range(30_000))}}))
    assert "name it in recipe_args" in message


@pytest.mark.parametrize(
    "url",
    [
        "s3://me:hunter2@bucket/x",
        "file://me:hunter2@host/x",
        "https://hunter2@host/x",
        "s3://$SECRET_USER@bucket/x",
    ],
)
def test_credentials_in_a_target_are_refused_and_not_shown(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PrefectHQ/prefect#11098: no secret in any message."""
    monkeypatch.setenv("SECRET_USER", "me:hunter2")
    store = {"targets": [url], "redundancy": 0}
    message = refusal(write_job(tmp_path, {**BASE, "store": store}))
    assert "by reference" in message
    assert "store.targets[0]" in message
    assert "hunter2" not in message
    with pytest.raises(ValidationError) as caught:
        TrainJob(**BASE, store={**store, "targets": [url.replace("$SECRET_USER", "me:hunter2")]})
    assert "hunter2" not in str(caught.value)


def test_fixed_keys_that_differ_are_named_with_both_values() -> None:
    job = TrainJob(**BASE, recipe_args={"width": 8, "flag": 1})
    assert set(job.fixed()) == set(FIXED_KEYS)
    compare_fixed(job.fixed(), TrainJob.from_json(job.to_json()).fixed())
    changes: list[tuple[dict[str, Any], str]] = [
        ({"seed": 3}, "seed=3 differs from 0"),
        ({"recipe_args": {"width": 9, "flag": 1}}, "recipe_args.width=9 differs from 8"),
        ({"recipe_args": {"width": 8, "flag": True}}, "recipe_args.flag=true differs from 1"),
        ({"recipe_args": {"width": 8}}, "recipe_args.flag=(absent) differs from 1"),
        ({"clip_norm": None}, "clip_norm=null differs from 1.0"),
        ({"store": {"redundancy": 1}}, "store.redundancy=1 differs from 2"),
        (
            {"store": {"targets": [f"file:///{n}" for n in range(7)]}},
            "store.targets='7 targets' differs from '5 t",
        ),
    ]
    for change, expected in changes:
        other = TrainJob(**{**BASE, "recipe_args": {"width": 8, "flag": 1}, **change})
        with pytest.raises(JobError, match=re.escape(expected)) as caught:
            compare_fixed(job.fixed(), other.fixed(), run="a-run")
        assert "'a-run'" in str(caught.value)


def test_what_may_change_between_starts_is_not_fixed() -> None:
    job = TrainJob(**BASE)
    other = TrainJob(
        **{**BASE, "steps": 400, "segment_steps": 10},
        cluster={"workers": 4},
        store={"group_steps": 4, "deadline": "5s"},
        fault_tolerance={"lease": 3},
    )
    compare_fixed(job.fixed(), other.fixed())


def test_the_form_that_prefect_shows_accepts_what_the_file_accepts() -> None:
    schema = TrainJob.model_json_schema()
    deadline = schema["$defs"]["StoreConfig"]["properties"]["deadline"]
    assert {option["type"] for option in deadline["anyOf"]} == {"number", "string"}
    assert schema["properties"]["seed"]["description"].startswith("Decides sample order")
