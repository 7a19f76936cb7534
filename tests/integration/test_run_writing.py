"""Holding a run on real targets: claims, fencing, leases, repair, retention, slow and failing targets."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from checkpoint_runs import (
    IDENTITY,
    RUN,
    check_whole,
    contents,
    make_run,
    objects,
    opened,
    put_steps,
    record,
    start,
)

from openclaw_tasks.checkpoint import driver
from openclaw_tasks.checkpoint.put import put_base, put_group
from openclaw_tasks.checkpoint.reader import RunReader
from openclaw_tasks.checkpoint.writer import RunWriter
from openclaw_tasks.errors import (
    DataLossError,
    FencedError,
    JobError,
    NotDurableError,
    RunLiveError,
    StoreError,
    StoreTimeoutError,
)
from openclaw_tasks.storage.store import Buffer, Store
from openclaw_tasks.storage.targets import TargetSet

TESTS = Path(__file__).parents[1]


@contextmanager
def held(targets: TargetSet, **more: Any) -> Iterator[RunWriter]:
    """A writer that is released at the end, whatever happens."""
    writer = start(targets, **more)
    try:
        yield writer
    finally:
        writer.release()


class Flaky:
    """A store in front of a real one: `trouble(operation, key)` may raise, or wait, before it is asked."""

    def __init__(self, store: Store, trouble: Callable[[str, str], None]) -> None:
        self.url = store.url
        self._store = store
        self._trouble = trouble

    def create(self, key: str, data: Buffer) -> None:
        self._trouble("create", key)
        self._store.create(key, data)

    def replace(self, key: str, data: Buffer) -> None:
        self._trouble("replace", key)
        self._store.replace(key, data)

    def read(self, key: str) -> bytes:
        self._trouble("read", key)
        return self._store.read(key)

    def list(self, prefix: str) -> list[str]:
        self._trouble("list", prefix)
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        self._trouble("delete", key)
        self._store.delete(key)

    def sweep_temporaries(self, older_than_seconds: float = 0.0) -> int:
        return self._store.sweep_temporaries(older_than_seconds)


def with_trouble(targets: TargetSet, *indices: int, trouble: Callable[[str, str], None]) -> TargetSet:
    stores = tuple(
        Flaky(store, trouble) if index in indices and store is not None else store
        for index, store in enumerate(targets.stores)
    )
    return TargetSet(targets.urls, stores, targets.uuids, targets.problems, targets.blank)


def test_a_resumed_run_goes_on_where_it_was_and_keeps_its_job_and_identity(tmp_path: Path) -> None:
    make_run(tmp_path)
    with held(opened(tmp_path), job={"steps": 20}) as writer:
        assert (writer.epoch, writer.durable_step, writer.is_new) == (2, 10, False)
        put_steps(writer, opened(tmp_path), 20)
    with RunReader(opened(tmp_path), RUN) as reader:
        check_whole(reader, steps=20)
        assert reader.job == {"steps": 20}
        assert reader.identity_at(1, reader.lineage.groups[0].writer) == IDENTITY
        assert [group.seq for group in reader.lineage.groups] == list(range(1, len(reader.lineage.groups) + 1))


def test_a_start_puts_back_what_damaged_targets_lack(tmp_path: Path) -> None:
    make_run(tmp_path)
    before = {key: data for key, data in contents(tmp_path).items() if "/log/" in key or "/base/" in key}
    shutil.rmtree(tmp_path / "t1" / RUN / "log")
    shutil.rmtree(tmp_path / "t3" / RUN / "base")
    for path in (tmp_path / "t3" / RUN / "log").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1] + b"?")
    with held(opened(tmp_path)) as writer:
        assert writer.warnings
        after = contents(tmp_path)
    assert {key: after.get(key) for key in before} == before


def test_a_fenced_writer_never_acknowledges_and_hears_of_it(tmp_path: Path) -> None:
    make_run(tmp_path)
    with held(opened(tmp_path)) as old:
        # A takeover by somebody to whom the old holder looked frozen.
        for target in range(5):
            (tmp_path / f"t{target}" / RUN / "holder.json").unlink(missing_ok=True)
        claims = [tmp_path / f"t{target}" / RUN / "claim" / "3" for target in range(3)]
        for claim in claims:
            claim.write_bytes(claim.with_name("2").read_bytes())
        with pytest.raises(FencedError, match="epoch 3"):
            put_steps(old, opened(tmp_path), 11)
        assert old.durable_step == 10
        assert old.fenced.wait(10)


def test_a_second_start_of_a_live_run_is_refused_with_the_holders_name(tmp_path: Path) -> None:
    make_run(tmp_path)
    with held(opened(tmp_path)) as writer:
        before = {key for key in contents(tmp_path) if not key.endswith("holder.json")}
        with pytest.raises(RunLiveError, match="pid"):
            start(opened(tmp_path), lease_seconds=10.0)
        assert {key for key in contents(tmp_path) if not key.endswith("holder.json")} == before
        assert not writer.fenced.is_set()
        put_steps(writer, opened(tmp_path), 12)


def test_a_changed_fixed_fact_is_refused_before_anything_changes(tmp_path: Path) -> None:
    make_run(tmp_path)
    before = contents(tmp_path)

    def refuse(previous: Any) -> None:
        raise JobError(f"seed={previous['fixed']['seed']} is fixed")

    with pytest.raises(JobError, match="seed=1"):
        start(opened(tmp_path), check_identity=refuse)
    with pytest.raises(JobError, match=r"redundancy=2.*says 1"):
        start(opened(tmp_path), redundancy=1)
    assert contents(tmp_path) == before


HOLDER = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from checkpoint_runs import *
folder = Path({folder!r})
targets = opened(folder)
writer = start(targets)
{body}
"""


def holder_process(folder: Path, body: str) -> subprocess.Popen[str]:
    code = HOLDER.format(tests=str(TESTS), folder=str(folder), body=body)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


@pytest.mark.chaos
def test_a_holder_killed_on_this_host_is_taken_over_at_once(tmp_path: Path) -> None:
    make_run(tmp_path)
    with holder_process(
        tmp_path, "put_steps(writer, targets, 14)\nprint('held', flush=True)\ntime.sleep(60)"
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with held(opened(tmp_path), lease_seconds=3600.0) as writer:
        assert writer.durable_step == 14


@pytest.mark.chaos
def test_a_stopped_holder_is_taken_over_after_its_lease_and_fenced_when_it_wakes(tmp_path: Path) -> None:
    make_run(tmp_path)
    body = "print('held', flush=True)\ntry:\n    writer.fenced.wait(60); put_steps(writer, targets, 14)\n"
    body += "except FencedError: print('fenced', flush=True)"
    body = "from openclaw_tasks.errors import FencedError\n" + body
    with holder_process(tmp_path, body) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        try:
            with held(opened(tmp_path), lease_seconds=1.0) as writer:
                put_steps(writer, opened(tmp_path), 12)
                holder.send_signal(signal.SIGCONT)
                assert holder.stdout.readline() == "fenced\n"
                assert writer.durable_step == 12
        finally:
            holder.kill()
            holder.wait()
    with RunReader(opened(tmp_path), RUN) as reader:
        check_whole(reader, steps=12)


@pytest.mark.chaos
@pytest.mark.parametrize("writes", [0, 1, 2, 3, 4, 7, 12, 19])
def test_a_writer_killed_between_two_writes_leaves_nothing_half_written(tmp_path: Path, writes: int) -> None:
    """Lightning-AI/pytorch-lightning#688: half a file under the final name, and the next start dies on it."""
    make_run(tmp_path)
    body = f"""
import os, signal
from openclaw_tasks.storage.file_store import FileStore
left = {writes}
create = FileStore.create
def counted(store, key, data):
    global left
    if '/log/' in key or '/base/' in key:
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    create(store, key, data)
FileStore.create = counted
put_one_base(writer, targets, 10)
put_steps(writer, targets, 14)
"""
    with holder_process(tmp_path, body) as holder:
        assert holder.wait() == -signal.SIGKILL
    with RunReader(opened(tmp_path), RUN) as reader:
        records = [found.to_bytes() for found in reader.records(1, reader.last_step)]
        assert records == [record(step).to_bytes() for step in range(1, reader.last_step + 1)]
    with held(opened(tmp_path)) as writer:
        assert writer.durable_step in (10, 14)
        put_steps(writer, opened(tmp_path), 16)
    with RunReader(opened(tmp_path), RUN) as reader:
        assert {base.step for base in reader.lineage.bases} >= {0, 4, 8}
        for base in reader.lineage.bases:
            assert reader.read_base(base)[0] == objects(base.step)


@pytest.mark.chaos
def test_two_processes_that_start_a_run_at_once_never_mix(tmp_path: Path) -> None:
    """microsoft/agent-framework#7757: two writers under one name publish a file with a tail of the other's."""
    make_run(tmp_path)
    body = """
from openclaw_tasks.errors import OpenClawError
try:
    while writer.durable_step < 60:
        put_steps(writer, targets, writer.durable_step + 2, group_steps=2)
    print('done', writer.epoch, flush=True)
except OpenClawError as error:
    print(type(error).__name__, writer.epoch, flush=True)
writer.release()
"""
    both = [holder_process(tmp_path, body) for _ in range(2)]
    ends = []
    for process in both:
        with process:
            out, _ = process.communicate(timeout=60)
            ends.append(out.split()[0] if out.split() else "refused")
    assert sorted(ends) in (["FencedError", "done"], ["done", "refused"], ["done", "done"])
    with RunReader(opened(tmp_path), RUN) as reader:
        check_whole(reader, steps=60)


def test_a_base_whose_upload_never_ended_is_not_resumed_from(tmp_path: Path) -> None:
    """KempnerInstitute/KempnerForge#102: the pointer moved when the upload had only been started."""
    make_run(tmp_path)
    with held(opened(tmp_path)) as writer:

        def trouble(operation: str, key: str) -> None:
            if operation == "create" and "optimizer" in key:
                raise StoreTimeoutError("blocked")

        facts = {"step": 10, "applied": 10, "weights_digest": "w", "state_digest": "s"}
        with pytest.raises(NotDurableError, match="optimizer"):
            put_base(
                with_trouble(opened(tmp_path), 0, 1, 2, trouble=trouble), writer.base_spec(10), objects(10), {}, facts
            )
        with pytest.raises(AssertionError):
            writer.mark_verified(10, {})
    with RunReader(opened(tmp_path), RUN) as reader:
        assert reader.choose_base().step == 8
        assert [found.step for found in reader.records(9, 10)] == [9, 10]


def test_a_base_whose_bytes_read_back_otherwise_is_not_committed(tmp_path: Path) -> None:
    make_run(tmp_path)
    with held(opened(tmp_path)) as writer:

        def trouble(operation: str, key: str) -> None:
            if operation == "read" and "/base/10-" in key:
                raise StoreError("other bytes")

        facts = {"step": 10, "applied": 10, "weights_digest": "w", "state_digest": "s"}
        flaky = with_trouble(opened(tmp_path), 0, 1, 2, trouble=trouble)
        with pytest.raises(NotDurableError, match="read back"):
            put_base(flaky, writer.base_spec(10), objects(10), {}, facts)
    assert not list(tmp_path.rglob("10-*.json"))


def test_failing_targets_are_tried_again_and_cost_nothing_but_the_redundancy(tmp_path: Path) -> None:
    """ray-project/ray#47939: one failed upload (rate limit, network) kills the training."""
    make_run(tmp_path)
    failures = {"left": 9}

    def trouble(operation: str, key: str) -> None:
        if operation == "create" and "/log/" in key and failures["left"] > 0:
            failures["left"] -= 1
            raise StoreError("503 slow down")

    with held(opened(tmp_path)) as writer:
        always = with_trouble(opened(tmp_path), 1, 4, trouble=_refuse)
        assert [(result.acked, result.degraded) for result in put_steps(writer, always, 12)] == [(3, True)]
        flaky = with_trouble(opened(tmp_path), 0, 1, 2, trouble=trouble)
        attempts = 0
        while writer.durable_step < 14:
            attempts += 1
            try:
                put_steps(writer, flaky, 14)
            except NotDurableError:
                continue
        assert attempts == 4
        with pytest.raises(NotDurableError, match="503"):
            put_steps(writer, with_trouble(opened(tmp_path), 0, 1, 2, trouble=_refuse), 16)
        assert writer.durable_step == 14
        put_steps(writer, opened(tmp_path), 16)
    with RunReader(opened(tmp_path), RUN) as reader:
        check_whole(reader, steps=16)


def _refuse(operation: str, key: str) -> None:
    raise StoreError("503 slow down")


def test_degraded_groups_are_made_whole_when_the_target_is_back(tmp_path: Path) -> None:
    make_run(tmp_path)
    with held(opened(tmp_path)) as writer:
        put_steps(writer, with_trouble(opened(tmp_path), 2, trouble=_refuse), 18)
        assert writer.repair() == 2
        assert writer.repair() == 0
        damaged = next((tmp_path / "t4" / RUN / "log").rglob("*.1-4.*/4"))
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
        assert writer.repair() == 0
        assert writer.repair(deep_bytes=1 << 20) == 1
    for target in (0, 4):
        shutil.rmtree(tmp_path / f"t{target}")
    with RunReader(opened(tmp_path), RUN) as reader:
        check_whole(reader, steps=18)


def test_a_degraded_group_that_lost_its_targets_is_never_dropped_in_silence(tmp_path: Path) -> None:
    make_run(tmp_path)
    with held(opened(tmp_path)) as writer:
        put_steps(writer, with_trouble(opened(tmp_path), 2, 3, trouble=_refuse), 12)
    before = contents(tmp_path)
    shutil.rmtree(tmp_path / "t0")
    with pytest.raises((NotDurableError, DataLossError), match="steps 11 to 12"):
        start(opened(tmp_path))
    shutil.rmtree(tmp_path / "t1")
    with pytest.raises((NotDurableError, DataLossError), match="steps 11 to 12"):
        RunReader(opened(tmp_path), RUN)
    for key, data in before.items():
        if not key.startswith(("t2", "t3", "t4")):
            (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / key).write_bytes(data)
    with RunReader(opened(tmp_path), RUN) as reader:
        check_whole(reader, steps=12)


def test_a_hanging_target_holds_a_group_up_once_and_is_then_left_out(tmp_path: Path) -> None:
    """No timing is asserted: the target counts how often it was asked."""
    make_run(tmp_path)
    asked: list[str] = []

    def trouble(operation: str, key: str) -> None:
        asked.append(operation)
        raise StoreTimeoutError("no answer in time")

    with held(opened(tmp_path)) as writer:
        slow = with_trouble(opened(tmp_path), 3, trouble=trouble)
        put_steps(writer, slow, 30)
        assert asked == ["create"]
        assert driver.run(_ask(3), slow) == "StoreTimeoutError"
        assert len(asked) == 2


def _ask(target: int) -> Any:
    from openclaw_tasks.checkpoint.operations import List

    (answer,) = yield [List(target, "")]
    return type(answer).__name__


def verified_run(folder: Path) -> tuple[TargetSet, RunWriter]:
    """A held run with verified bases 4, 8 and 12."""
    make_run(folder, steps=12, bases=(4, 8, 12))
    targets = opened(folder)
    writer = start(targets)
    for step in (4, 8):
        writer.mark_verified(step, {"state_digest": f"s{step}"})
    return targets, writer


def test_retention_keeps_two_verified_bases_and_the_log_back_to_the_older(tmp_path: Path) -> None:
    targets, writer = verified_run(tmp_path)
    try:
        assert writer.retain(grace_seconds=0.0) > 0
        assert [base.step for base in writer.lineage.bases] == [4, 8, 12]
        writer.mark_verified(12, {})
        assert writer.retain(grace_seconds=0.0) > 0
        put_steps(writer, targets, 14)
    finally:
        writer.release()
    left = contents(tmp_path)
    assert not [key for key in left if "/base/0-" in key or "/base/4-" in key or ".1-4." in key or ".5-8." in key]
    with RunReader(opened(tmp_path), RUN) as reader:
        assert [(base.step, base.verified) for base in reader.lineage.bases] == [(8, True), (12, True)]
        assert [found.to_bytes() for found in reader.records(9, 14)] == [record(s).to_bytes() for s in range(9, 15)]
        with pytest.raises(DataLossError, match="steps 8 to 9"):
            list(reader.records(8, 9))
    with held(opened(tmp_path)) as again:
        assert again.durable_step == 14
        put_steps(again, opened(tmp_path), 16)


def test_retention_waits_for_a_pinned_reader(tmp_path: Path) -> None:
    _, writer = verified_run(tmp_path)
    try:
        writer.mark_verified(12, {})
        with RunReader(opened(tmp_path), RUN, pin=True) as reader:
            writer.retain(grace_seconds=0.0)
            check_whole(reader, steps=12, bases=(0, 4, 8, 12))
        assert writer.retain(grace_seconds=0.0) > 0
        with RunReader(opened(tmp_path), RUN) as reader:
            assert [base.step for base in reader.lineage.bases] == [8, 12]
    finally:
        writer.release()
    assert not list(tmp_path.rglob("pin/*"))


def test_a_pin_whose_reader_is_gone_holds_nothing_back_after_its_lease(tmp_path: Path) -> None:
    _, writer = verified_run(tmp_path)
    try:
        writer.mark_verified(12, {})
        reader = RunReader(opened(tmp_path), RUN, pin=True)
        key = next(tmp_path.glob(f"t0/{RUN}/pin/*.json"))
        left = key.read_bytes()
        reader.close()
        for target in range(5):
            forgotten = tmp_path / f"t{target}" / RUN / "pin" / key.name
            forgotten.parent.mkdir()
            forgotten.write_bytes(left)
        writer.retain(grace_seconds=0.0)
        assert list(tmp_path.rglob("0-*.json"))
        assert writer.retain(grace_seconds=0.0, pin_lease_seconds=0.0) > 0
        assert not list(tmp_path.rglob("0-*.json"))
        assert not list(tmp_path.rglob("pin/*"))
    finally:
        writer.release()


def test_retention_stops_when_overtaken(tmp_path: Path) -> None:
    _, writer = verified_run(tmp_path)
    try:
        for target in range(3):
            claim = tmp_path / f"t{target}" / RUN / "claim" / "3"
            claim.write_bytes(claim.with_name("2").read_bytes())
        before = {key for key in contents(tmp_path) if "/floor/" not in key}
        with pytest.raises(FencedError):
            writer.retain(grace_seconds=0.0)
        assert {key for key in contents(tmp_path) if "/floor/" not in key} == before
        assert writer.fenced.is_set()
    finally:
        writer.release()


def test_a_base_that_fails_to_load_is_quarantined_for_every_later_attempt(tmp_path: Path) -> None:
    """llnl/scr#174: the job restarts from the same bad checkpoint until its retries are gone."""
    make_run(tmp_path)
    with RunReader(opened(tmp_path), RUN) as reader:
        bad = reader.choose_base()
        assert bad.step == 8
        reader.pass_over(bad, "raised in the load hook")
        assert reader.choose_base().step == 4
        assert any("step 8" in warning for warning in reader.warnings)
    with held(opened(tmp_path)) as writer:
        writer.quarantine_base(8, "raised in the load hook")
        assert [base.step for base in writer.lineage.bases] == [0, 4]
    assert len(list(tmp_path.rglob("8-*.quarantined.json"))) == 5
    with RunReader(opened(tmp_path), RUN) as reader:
        assert reader.choose_base().step == 4
        assert [found.step for found in reader.records(5, 10)] == list(range(5, 11))


def test_a_rollback_is_a_new_epoch_that_ends_inside_a_group(tmp_path: Path) -> None:
    make_run(tmp_path)
    targets = opened(tmp_path)
    with held(targets, end_step=6, skip=[7]) as writer:
        assert (writer.durable_step, writer.lineage.skip) == (6, (7,))
        assert [base.step for base in writer.lineage.bases] == [0, 4]
        spec = writer.group_spec(7, 8, "bf16")
        assert spec.previous == writer.lineage.groups[-1].digest
        writer.record_group(put_group(targets, spec, [record(step).to_bytes() for step in (7, 8)]))
    with RunReader(opened(tmp_path), RUN) as reader:
        assert (reader.last_step, reader.lineage.skip) == (8, (7,))
        assert [found.to_bytes() for found in reader.records(3, 8)] == [record(s).to_bytes() for s in range(3, 9)]
        assert [(group.first, group.last) for group in reader.lineage.groups] == [(1, 4), (5, 8), (7, 8)]
    with pytest.raises(JobError, match="cannot go back to step 50"):
        start(opened(tmp_path), end_step=50)


@pytest.mark.parametrize(("count", "redundancy"), [(3, 1), (1, 0), (4, 1)])
def test_other_numbers_of_targets(tmp_path: Path, count: int, redundancy: int) -> None:
    make_run(tmp_path, count=count, redundancy=redundancy)
    for target in range(redundancy):
        shutil.rmtree(tmp_path / f"t{target}")
    with RunReader(opened(tmp_path, count), RUN) as reader:
        check_whole(reader)
    with held(opened(tmp_path, count), redundancy=redundancy) as writer:
        put_steps(writer, opened(tmp_path, count), 12)


def test_late_reports_of_replaced_attempts_are_ignored(tmp_path: Path) -> None:
    make_run(tmp_path)
    targets = opened(tmp_path)
    with held(targets) as writer:
        first, second = writer.group_spec(11, 12, "bf16"), writer.group_spec(11, 12, "bf16")
        assert first.attempt != second.attempt
        records = [record(step).to_bytes() for step in (11, 12)]
        early, late = put_group(targets, second, records), put_group(targets, first, records)
        writer.record_group(early)
        writer.record_group(late)
        assert writer.durable_step == 12
        put_steps(writer, targets, 14)
    with RunReader(opened(tmp_path), RUN) as reader:
        check_whole(reader, steps=14)


def test_the_heartbeat_tells_the_durable_step_and_ends_with_a_release(tmp_path: Path) -> None:
    make_run(tmp_path)
    names = {thread.name for thread in threading.enumerate()}
    assert not {name for name in names if name.startswith(("heartbeat", "mender", "pin"))}
    holder = (tmp_path / "t0" / RUN / "holder.json").read_text()
    assert '"durable_step":10' in holder
    assert '"released":true' in holder
    # Released: nobody waits for the lease, however long.
    with held(opened(tmp_path), lease_seconds=3600.0) as writer:
        assert writer.epoch == 2
