"""Targets that vanish, rot, fill up or refuse: training goes on while m are away, waits in the open when more are."""

from __future__ import annotations

import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from gang_runs import (
    ROUNDS,
    GangRuns,
    Outcome,
    Scene,
    assert_exact,
    assert_log_exact,
    delete_target,
    flip_a_byte_in_each_stripe,
    taken_away,
    target_folders,
    unwritable,
)

from openclaw_tasks.errors import DataLossError

pytestmark = pytest.mark.chaos

SLOWLY = {"pause_seconds": 0.002}
BOUND = 6
TIGHT = {"max_unprotected_steps": BOUND}


@pytest.mark.parametrize("attempt", range(3 * ROUNDS))
def test_any_two_of_five_targets_deleted_in_mid_run_cost_nothing(gang: GangRuns, attempt: int) -> None:
    first, second = gang.rng.sample(range(5), 2)
    early, late = sorted(gang.rng.sample(range(2, 12), 2))
    job = gang.job("Everything", workers=2)
    outcome = gang.run(job, f"delete-target:{first}@{early}", f"delete-target:{second}@{late}", prove=attempt == 0)
    report = assert_exact(outcome)
    assert report.recoveries == ()
    assert report.degraded_groups is not None
    assert report.degraded_groups > 0
    gone = {event["target"] for event in outcome.of("storage") if event["problem"] is not None}
    assert {first, second} <= gone
    assert [index for index, folder in enumerate(target_folders(job)) if not folder.exists()] == sorted([first, second])


def test_a_gang_lost_after_two_targets_begins_again_from_the_other_three(gang: GangRuns) -> None:
    """seaweedfs/seaweedfs#7832: decoded from the fewest stripes, whichever they are."""
    first, second = gang.rng.sample(range(5), 2)
    faults = [f"delete-target:{first}@5", f"delete-target:{second}@5", "kill-rank:0@9", "kill-rank:1@9"]
    outcome = gang.run(gang.job("Everything", workers=2), *faults)
    assert_exact(outcome, steps_lost=1)
    assert len(outcome.of("gang-lost")) == 1


def test_a_byte_flipped_in_each_stripe_of_two_targets_is_not_believed(gang: GangRuns) -> None:
    """seaweedfs/seaweedfs#7832: a rotten stripe counts as missing; a fresh gang is rebuilt from the others."""
    damaged: list[int] = []

    def damage(scene: Scene) -> None:
        scene.wait("durable", step=lambda step: step >= 6)
        damaged.extend(flip_a_byte_in_each_stripe(folder, gang.rng) for folder in gang.rng.sample(scene.targets, 2))
        for rank in range(2):
            scene.strike(scene.pid(rank))
        scene.hurry()

    job = gang.job("Everything", workers=2, recipe_args=gang.crawl(), steps=40, segment_steps=20)
    outcome = gang.run(job, disturb=damage)
    assert_exact(outcome, steps_lost=2)
    assert all(count >= 4 for count in damaged), damaged
    assert len(outcome.of("gang-lost")) == 1


def test_a_finished_run_goes_on_from_damaged_targets(gang: GangRuns) -> None:
    """HarperFast/harper#2016: damage is mended from parity, or is an error that names the step; never skipped."""
    job = gang.job("Everything", workers=2, codec="int8")
    assert_exact(gang.run(job))
    two = gang.rng.sample(target_folders(job), 2)
    for folder in two:
        assert flip_a_byte_in_each_stripe(folder, gang.rng) > 0
    assert_exact(gang.run(job.model_copy(update={"steps": 16})))
    # What the second start found damaged it has written again: two others may go now.
    for folder in set(target_folders(job)) - set(two):
        if len(list(folder.parent.glob("t?"))) > 3:
            delete_target(folder)
    assert_log_exact(job.model_copy(update={"steps": 16}))


def test_more_damage_than_redundancy_is_an_error_and_no_fresh_start(gang: GangRuns) -> None:
    """awslabs/mountpoint-s3#1422: what cannot be read is never taken for what is not there."""
    job = gang.job("Everything", workers=2)
    assert_exact(gang.run(job))
    for folder in gang.rng.sample(target_folders(job), 3):
        assert flip_a_byte_in_each_stripe(folder, gang.rng) > 0
    outcome = gang.run(job.model_copy(update={"steps": 16}))
    assert isinstance(outcome.error, DataLossError)
    assert outcome.of("step") == []


def assert_waited(outcome: Outcome) -> None:
    """Training went on as far as it may, waited, said so, and went on when it could."""
    wait, over = outcome.of("waiting")
    assert (over["reason"], over["step"]) == (None, wait["step"])
    before = outcome.events[: outcome.events.index(wait)]
    durable = max([0, *(event["step"] for event in before if event["kind"] == "durable")])
    done = max(event["step"] for event in before if event["kind"] == "step")
    assert done == durable + BOUND
    after = [event["kind"] for event in outcome.events[outcome.events.index(wait) :]]
    assert after.index("durable") < after.index("step")
    problems = [event["problem"] for event in outcome.of("storage") if event["target"] is None]
    assert any(problem is not None for problem in problems)
    assert problems[-1] is None


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("way", [taken_away, unwritable])
def test_training_waits_for_targets_only_past_the_bound_and_goes_on_by_itself(
    gang: GangRuns, workers: int, way: type[ExitStack]
) -> None:
    """ray-project/ray#47939: failed puts never end a run; past the unprotected steps it waits, and says so."""

    def take_three_away(scene: Scene) -> None:
        scene.wait("durable")
        with ExitStack() as stack:
            for folder in gang.rng.sample(scene.targets, 3):
                stack.enter_context(way(folder))
            scene.wait("storage", target=None, problem=lambda problem: problem is not None)
            scene.wait("waiting", reason=lambda reason: "waits" in str(reason))
        scene.wait("waiting", reason=None)

    job = gang.job("Everything", workers=workers, recipe_args=SLOWLY, steps=24, fault_tolerance=TIGHT)
    outcome = gang.run(job, disturb=take_three_away)
    assert_exact(outcome)
    assert_waited(outcome)


def test_a_rank_killed_while_training_waits_for_storage_changes_no_bit(gang: GangRuns) -> None:
    """A newcomer lacks the records that are not durable yet: the others hold them until they are."""

    def strike(scene: Scene) -> None:
        scene.wait("durable")
        with ExitStack() as stack:
            for folder in gang.rng.sample(scene.targets, 3):
                stack.enter_context(taken_away(folder))
            scene.wait("waiting", reason=lambda reason: reason is not None)
            scene.strike(scene.pid(1))
            scene.wait("generation", cause="rank killed by signal 9")
        scene.wait("waiting", reason=None)

    job = gang.job("Everything", workers=2, recipe_args=SLOWLY, steps=24, fault_tolerance=TIGHT)
    assert_exact(gang.run(job, disturb=strike))


def test_records_that_die_with_their_agents_while_storage_is_away_are_computed_again(gang: GangRuns) -> None:
    """A newcomer holds the state, but nobody the records before it: the gang begins again at the durable step."""

    def strike(scene: Scene) -> None:
        scene.wait("durable", step=lambda step: step >= 4)
        with ExitStack() as stack:
            for folder in scene.targets:
                stack.enter_context(taken_away(folder))
            scene.wait("step")
            for _ in range(2):
                scene.strike(scene.agent(0))  # of the older rank
                scene.wait_for_newcomers()
        scene.hurry()

    job = gang.job("Everything", workers=2, recipe_args=gang.crawl(), steps=75, segment_steps=25)
    outcome = gang.run(job, disturb=strike, spare_agents=2)
    report = assert_exact(outcome, steps_lost=200)
    (lost,) = outcome.of("gang-lost")
    assert "held the next records" in lost["cause"]
    assert any(recovery.steps_lost for recovery in report.recoveries)


# Full disks


@contextmanager
def tiny_disk(folder: Path, size: str) -> Iterator[None]:
    """A tmpfs of this size at `folder`; skips where none may be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no tmpfs can be mounted here: {error}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)


def fill(folder: Path) -> Path:
    """Write a file until the disk below `folder` is full; the file."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


def test_training_waits_for_full_disks_and_goes_on_when_there_is_room(gang: GangRuns) -> None:
    """pytorch/pytorch#10577: the error tells path, need and free bytes; nothing broken stays; training goes on."""

    def play(scene: Scene) -> None:
        scene.wait("durable")
        ballast = [fill(folder) for folder in full]
        problem = scene.wait("storage", target=None, problem=lambda problem: problem is not None)["problem"]
        assert "bytes" in problem
        assert "free" in problem
        scene.wait("waiting", reason=lambda reason: reason is not None)
        for file in ballast:
            file.unlink()
        scene.wait("waiting", reason=None)

    job = gang.job("Everything", workers=2, recipe_args=SLOWLY, steps=24, fault_tolerance=TIGHT)
    full = target_folders(job)[:3]
    with ExitStack() as stack:
        for folder in full:
            stack.enter_context(tiny_disk(folder, "4m"))
        outcome = gang.run(job, disturb=play)
        assert_exact(outcome)
        assert_waited(outcome)


def test_two_full_disks_of_five_cost_nothing(gang: GangRuns) -> None:
    """pytorch/pytorch#10577: what can still be written is written, and the run says which target is full."""

    def play(scene: Scene) -> None:
        scene.wait("durable")
        for folder in full:
            fill(folder)

    job = gang.job("Everything", workers=2, recipe_args=SLOWLY, steps=24)
    full = target_folders(job)[3:]
    with ExitStack() as stack:
        for folder in full:
            stack.enter_context(tiny_disk(folder, "4m"))
        report = assert_exact(gang.run(job, disturb=play))
        assert report.degraded_groups is not None
        assert report.degraded_groups > 0


def test_agents_that_may_write_no_large_file_go_on_when_they_may_again(gang: GangRuns) -> None:
    """pytorch/pytorch#10577: RLIMIT_FSIZE stands in for full disks where none can be mounted."""

    def limit_files(scene: Scene, size: int) -> None:
        for agent in scene.agents():
            psutil.Process(agent).rlimit(psutil.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def play(scene: Scene) -> None:
        scene.wait("durable")
        limit_files(scene, 1024)
        try:
            scene.wait("waiting", reason=lambda reason: reason is not None)
        finally:
            limit_files(scene, resource.RLIM_INFINITY)
        scene.wait("waiting", reason=None)

    assert signal.getsignal(signal.SIGXFSZ) is signal.SIG_IGN  # as in every Python process: an error, not a death
    job = gang.job("Everything", workers=2, recipe_args=SLOWLY, steps=24, fault_tolerance=TIGHT)
    outcome = gang.run(job, disturb=play)
    assert_exact(outcome)
    assert_waited(outcome)
