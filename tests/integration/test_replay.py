"""States rebuilt and proven from stored bases and records of a real model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import zoo
from checkpoint_runs import RUN, opened, start
from oracle import take_step

from openclaw_tasks.checkpoint.put import put_base, put_group
from openclaw_tasks.checkpoint.reader import RunReader
from openclaw_tasks.checkpoint.replay import rebuild_state, verify_run
from openclaw_tasks.checkpoint.writer import RunWriter
from openclaw_tasks.errors import DamagedError, DataLossError, DigestMismatchError, RunError
from openclaw_tasks.exact.state import TrainState
from openclaw_tasks.storage.targets import TargetSet
from openclaw_tasks.training.build import build_state, build_training

STEPS, BASES = 10, (4, 8)
JOB = zoo.job("Everything")


@dataclass(frozen=True, slots=True)
class Trained:
    """A stored run, and the digests that its rank had after each step."""

    folder: Path
    digests: Mapping[int, tuple[str, str]]


def keep_base(writer: RunWriter, targets: TargetSet, state: TrainState) -> None:
    snapshot = state.snapshot()
    weights, whole = snapshot.digests()
    facts = {"step": snapshot.step, "applied": snapshot.applied, "weights_digest": weights, "state_digest": whole}
    writer.record_base(put_base(targets, writer.base_spec(snapshot.step), snapshot.objects, snapshot.plain, facts))


def keep_records(writer: RunWriter, targets: TargetSet, records: list[bytes]) -> None:
    first = writer.durable_step + 1
    spec = writer.group_spec(first, first + len(records) - 1, "bf16")
    writer.record_group(put_group(targets, spec, records))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    targets = opened(folder, create=True)
    training = build_training(JOB)
    identity = {"fingerprints": dict(training.fingerprints)}
    writer = start(targets, identity=identity)
    digests = {0: training.state.digests()}
    keep_base(writer, targets, training.state)
    waiting: list[bytes] = []
    for step in range(1, STEPS + 1):
        data, facts = take_step(training)
        digests[step] = facts.weights_digest, facts.state_digest
        waiting.append(data)
        if step % 3 == 0 or step in BASES or step == STEPS:
            keep_records(writer, targets, waiting)
            waiting = []
        if step in BASES:
            keep_base(writer, targets, training.state)
    writer.release()
    return Trained(folder, digests)


def fresh_state() -> TrainState:
    """A state that has gone another way, so that nothing of it may be left."""
    training = build_training(JOB)
    for _ in range(2):
        take_step(training)
    return training.state


@pytest.fixture
def reader(trained: Trained) -> Iterator[RunReader]:
    with RunReader(opened(trained.folder), RUN) as reader:
        yield reader


@pytest.mark.parametrize("step", range(STEPS + 1))
def test_every_step_is_rebuilt_bit_for_bit(trained: Trained, reader: RunReader, step: int) -> None:
    state = fresh_state()
    rebuilt = rebuild_state(reader, state, step)
    assert state.digests() == trained.digests[step]
    assert (rebuilt.step, rebuilt.base.step) == (step, max(base for base in (0, *BASES) if base <= step))
    assert rebuilt.records_applied == step - rebuilt.base.step


def test_the_last_step_is_rebuilt_by_default_and_progress_is_told(trained: Trained, reader: RunReader) -> None:
    state, told = fresh_state(), []
    assert rebuild_state(reader, state, on_record=lambda: told.append(state.step)).step == STEPS
    assert told == [9, 10]
    assert state.digests() == trained.digests[STEPS]


def test_a_base_that_fails_to_load_is_passed_over_for_an_older_one(trained: Trained, tmp_path: Path) -> None:
    """llnl/scr#174: the job restarts from the same bad checkpoint until its retries are gone."""
    folder = tmp_path / "copy"
    shutil.copytree(trained.folder, folder)
    for target in (0, 1, 2):
        for path in (folder / f"t{target}" / RUN / "base").glob("8-*/optimizer.*/*"):
            path.write_bytes(path.read_bytes()[:-1] + b"?")
    with RunReader(opened(folder), RUN) as reader:
        state = fresh_state()
        assert rebuild_state(reader, state).base.step == 4
        assert state.digests() == trained.digests[STEPS]
        assert any("step 8" in warning and "passed over" in warning for warning in reader.warnings)


def test_a_base_of_another_model_is_an_error_that_names_the_difference(trained: Trained, reader: RunReader) -> None:
    state = build_state(zoo.job("Tiny"))[1]
    before = state.digests()
    with pytest.raises(RunError, match="parameters differ"):
        rebuild_state(reader, state)
    assert state.digests() == before


@pytest.mark.parametrize("step", [None, 0, 3, 4, 7, 8, 10])
def test_a_sound_run_is_verified_from_the_fewest_stripes(trained: Trained, reader: RunReader, step: int | None) -> None:
    result = verify_run(reader, fresh_state, step)
    expected = STEPS if step is None else step
    assert (result.step, result.outcome) == (expected, "verified")
    assert (result.weights_digest, result.state_digest) == trained.digests[expected]


def test_a_run_with_two_targets_gone_is_verified(trained: Trained, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained.folder, folder)
    for target in (1, 3):
        shutil.rmtree(folder / f"t{target}")
    with RunReader(opened(folder), RUN) as reader:
        assert verify_run(reader, fresh_state).outcome == "verified"


def store_with(
    folder: Path,
    *,
    change_facts: Callable[[dict[str, str]], None] = lambda _: None,
    arithmetic: str | None = None,
    mix_records: bool = False,
) -> None:
    """A run like `trained`, with one thing about its second base or its records wrong."""
    targets = opened(folder, create=True)
    training = build_training(JOB)
    fingerprints = {**training.fingerprints, **({"arithmetic": arithmetic} if arithmetic is not None else {})}
    writer = start(targets, identity={"fingerprints": fingerprints})
    keep_base(writer, targets, training.state)
    records = [take_step(training)[0] for _ in range(4)]
    if mix_records:
        records[1], records[2] = records[2], records[1]
    keep_records(writer, targets, records)
    snapshot = training.state.snapshot()
    weights, whole = snapshot.digests()
    facts = {"weights_digest": weights, "state_digest": whole}
    change_facts(facts)
    spec = writer.base_spec(4)
    result = put_base(targets, spec, snapshot.objects, snapshot.plain, {"applied": snapshot.applied, **facts})
    writer.record_base(result)
    writer.release()


def test_a_replay_that_gives_another_state_than_the_ranks_reported_is_an_error(tmp_path: Path) -> None:
    store_with(tmp_path, change_facts=lambda facts: facts.update(state_digest="0" * 64))
    with RunReader(opened(tmp_path), RUN) as reader, pytest.raises(DigestMismatchError, match="step 4"):
        verify_run(reader, fresh_state)


def test_another_arithmetic_is_never_called_damaged(tmp_path: Path) -> None:
    training = build_training(JOB)
    other = {**json.loads(training.fingerprints["arithmetic"]), "isa": "another"}

    class Rounding(type(training.state)):  # type: ignore[misc]
        """Computes other bits in its last step, as another machine might."""

        def digests(self) -> tuple[str, str]:
            weights, whole = super().digests()
            return (weights, whole) if self.step != 4 else ("1" * 64, "1" * 64)

    def elsewhere() -> TrainState:
        state = fresh_state()
        state.__class__ = Rounding
        return state

    store_with(tmp_path, arithmetic=json.dumps(other, sort_keys=True))
    with RunReader(opened(tmp_path), RUN) as reader:
        assert verify_run(reader, elsewhere).outcome == "other-arithmetic"
        assert verify_run(reader, fresh_state).outcome == "verified"  # it happens to compute the same here


def test_records_out_of_order_are_an_error_that_names_step_and_group(tmp_path: Path) -> None:
    store_with(tmp_path, mix_records=True)
    with RunReader(opened(tmp_path), RUN) as reader, pytest.raises(DamagedError, match=r"group 1 .*holds step 3"):
        rebuild_state(reader, fresh_state(), 3)


def test_no_step_before_the_oldest_base_can_be_rebuilt(trained: Trained, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained.folder, folder)
    writer = start(opened(folder))
    for step in BASES:
        writer.mark_verified(step, {})
    writer.retain(grace_seconds=0.0)
    writer.release()
    with RunReader(opened(folder), RUN) as reader:
        with pytest.raises(DataLossError, match="no base at or before step 3"):
            rebuild_state(reader, fresh_state(), 3)
        state = fresh_state()
        rebuild_state(reader, state, 5)
        assert state.digests() == trained.digests[5]
        assert verify_run(reader, fresh_state).outcome == "verified"
