"""Starts that cannot be, runs that fail, and runs whose targets or data have gone: exit status, and what is left."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import Ended, openclaw
from drills import FOLDER, JOB, SAMPLES, Drills, sample_of

pytestmark = [pytest.mark.chaos, pytest.mark.flow]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_first_start_needs_every_target_and_leaves_nothing_behind(drills: Drills, tmp_path: Path) -> None:
    """pytorch/pytorch#10577: a place that cannot be written is found before training, and named."""
    places = [tmp_path / "a" / f"t{index}" for index in range(4)] + [Path("/proc/no-such-place/t4")]
    targets = [place.as_uri() for place in places]
    ended = drills.train("nowhere", "--set", f"store.targets={targets}")
    assert ended.status == 2, ended.err
    assert "a first start needs every target" in ended.complaint
    assert "target 4 (file:///proc/no-such-place/t4)" in ended.complaint
    assert ended.out == ""
    assert list(tmp_path.iterdir()) == []
    assert not drills.folder("nowhere").exists()
    assert not (drills.home / "index" / "nowhere.json").exists()


def test_a_slip_in_the_recipes_name_is_told_before_anything_starts(drills: Drills) -> None:
    ended = drills.train("misspelt", "--set", "recipe=drill_recipe:Dril")
    assert ended.status == 2, ended.err
    assert "has no class 'Dril'; did you mean 'Drill'?" in ended.complaint
    assert str(FOLDER / "drill_recipe.py") in ended.complaint
    assert len(ended.err.splitlines()) == 1
    assert drills.api.flow_runs("misspelt") == []


def test_a_recipe_that_cannot_be_built_is_status_2_at_the_users_own_server(drills: Drills, tmp_path: Path) -> None:
    """With PREFECT_API_URL no server is started; nothing of the run is left but its flow run there."""
    home = tmp_path / "home"
    user = Drills(home, drills.api)
    words = ["--set", "recipe_args.widht=9"]
    ended = user.train("unloaded", *words, environment={"PREFECT_API_URL": drills.api.url})
    assert ended.status == 2, ended.err
    assert "recipe_args: Drill " in ended.complaint
    assert "'widht'" in ended.complaint
    assert "Traceback" not in ended.err
    (flow_run,) = drills.api.flow_runs("unloaded")
    assert flow_run["state"]["type"] == "FAILED"
    assert not (home / "prefect").exists()
    assert [name for name in contents(home) if "/.prefect/" not in name] == []  # Prefect's own home is the user's


def test_what_the_recipe_raises_in_a_step_is_the_runs_error_with_its_own_traceback(
    drills: Drills, calm: dict[str, Any]
) -> None:
    """ray-project/ray#29927: the first error ends all ranks at once; it can be mended, and the run goes on."""
    poison = sample_of(13)
    with drills.start("poisoned", environment={"DRILL_POISON": f"raise:{poison}"}) as command:
        ended = command.end()
        command.wait_gone(10)
    assert ended.status == 1
    assert f"ValueError: sample {poison} is poison" in ended.complaint
    assert "step 13" in ended.complaint
    assert "rank " in ended.complaint
    assert f'File "{FOLDER / "drill_recipe.py"}"' in ended.err
    assert ended.err.count("Traceback (most recent call last)") == 1
    # The ranks' last exchange did not come about: step 12 is not final, and is computed again.
    assert drills.state("poisoned") == ("failed", 11)
    (flow_run,) = drills.api.flow_runs("poisoned")
    assert flow_run["state"]["type"] == "FAILED"
    assert "is poison" in flow_run["state"]["message"]
    mended = drills.train("poisoned", "--json")
    assert mended.status == 0, mended.err
    assert mended.document["state_digest"] == calm["state_digest"]
    assert drills.resumed_steps("poisoned") == [0, 11]


class Aging:
    """One run over its life: trained to step 10, then its data change, then its targets go."""

    def __init__(self, drills: Drills, folder: Path) -> None:
        self.drills = drills
        self.job = folder / JOB.name
        shutil.copytree(FOLDER, folder)

    def train(self, steps: int, *words: str) -> Ended:
        sets = ["run=aging", f"steps={steps}", "segment_steps=5"]
        flags = [word for value in sets for word in ("--set", value)]
        return self.drills.train_job(self.job, *flags, *words)


@pytest.fixture(scope="module")
def aging(drills: Drills, tmp_path_factory: pytest.TempPathFactory) -> Aging:
    found = Aging(drills, tmp_path_factory.mktemp("aging") / "drill")
    ended = found.train(10)
    assert ended.status == 0, ended.err
    return found


def test_other_data_are_refused_unless_accepted(drills: Drills, aging: Aging) -> None:
    """Nothing is changed by the refusal; with targets missing, what is accepted goes on, and warns."""
    points = aging.job.parent / "points.txt"
    points.write_text("other data")
    before = contents(drills.folder("aging"))
    ended = aging.train(20)
    assert ended.status == 2, ended.err
    assert "the data are not those of the last start" in ended.complaint
    assert "--accept-new-data" in ended.complaint
    after = contents(drills.folder("aging"))
    logs = str(drills.folder("aging") / "logs")
    assert {name: data for name, data in after.items() if not name.startswith(logs)} == {
        name: data for name, data in before.items() if not name.startswith(logs)
    }


def test_two_lost_targets_are_a_warning(drills: Drills, aging: Aging) -> None:
    """The run goes on, on other data, and says which targets are gone and where its bits part from the old data's."""
    (aging.job.parent / "points.txt").write_text("other data")
    with (aging.job.parent / "drill_recipe.py").open("a") as source:
        source.write("\n\nANOTHER = True\n")
    for index in (1, 3):
        shutil.rmtree(drills.targets("aging")[index])
    ended = aging.train(20, "--accept-new-data", "--json")
    assert ended.status == 0, ended.err
    assert ended.document["final_step"] == 20
    for index in (1, 3):
        assert ended.err.count(f"target {index} is gone") == 1
    assert "data differs from the last start" in ended.err
    assert "recipe differs from the last start" in ended.err
    assert drills.resumed_steps("aging") == [0, 10]


def test_verify_names_the_step_from_which_bits_are_not_promised(drills: Drills, aging: Aging) -> None:
    """The log is whole all the same: what is stored is what the ranks had."""
    told = openclaw("verify", aging.job, "--set", "run=aging", "--json", home=drills.home)
    assert told.status == 0, told.err
    assert told.document["step"] == 20
    assert told.document["ok"]
    assert "the recipe's source and the data changed before step 11: from that step on the bits are" in told.err


def test_three_lost_targets_are_one_clear_line_and_nothing_is_changed(drills: Drills, aging: Aging) -> None:
    """awslabs/mountpoint-s3#1422: never a start from scratch."""
    for index in (1, 3):
        shutil.rmtree(drills.targets("aging")[index], ignore_errors=True)
    away = drills.targets("aging")[4]
    away.rename(away.with_name("away"))
    try:
        before = contents(drills.folder("aging"))
        for ended in (aging.train(30), aging.train(20)):  # one that would go on, one that is finished
            assert (ended.status, ended.out) == (1, "")
            assert len(ended.err.splitlines()) == 1
            assert "3 of 5 targets are gone and redundancy covers 2" in ended.complaint
            for index in (1, 3, 4):
                assert str(drills.targets("aging")[index]) in ended.complaint
        assert contents(drills.folder("aging")) == before
    finally:
        away.with_name("away").rename(away)


def test_targets_that_were_emptied_are_no_fresh_start(drills: Drills, aging: Aging) -> None:
    """The targets answer, and none knows the run that the index knows."""
    held = [target / "aging" for target in drills.targets("aging") if (target / "aging").exists()]
    for folder in held:
        folder.rename(folder.with_name("away"))
    try:
        ended = aging.train(30)
        assert (ended.status, ended.out) == (1, "")
        assert "'aging'" in ended.complaint
        assert "bring them back" in ended.complaint
    finally:
        for folder in held:
            folder.with_name("away").rename(folder)


def test_a_sample_of_the_drill_comes_in_one_step_only() -> None:
    """What the poison of these tests rests on."""
    assert len({sample_of(step, number) for step in range(1, 41) for number in range(16)}) == SAMPLES
