"""Runs of small jobs on a warm gang, disturbed from outside, and their comparison with the undisturbed run.

A disturbance is a plain function over a `Scene`: it waits for events of the run and strikes. It runs in a thread of
its own beside the run, and must have ended when the run has.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import oracle
import psutil
import zoo

from openclaw_tasks.checkpoint.reader import RunReader
from openclaw_tasks.config.faults import parse_faults
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.errors import OpenClawError
from openclaw_tasks.gang.placing import WarmAgents, WarmPlacement
from openclaw_tasks.gang.plain_run import train_plainly
from openclaw_tasks.gang.session import Session
from openclaw_tasks.observe.events import Event, EventLog, read_events
from openclaw_tasks.observe.report import RecoveryCost, Report
from openclaw_tasks.storage.targets import open_targets

ROUNDS = int(os.environ.get("OPENCLAW_TEST_ROUNDS", "1"))
"""How many times over what is drawn by chance is drawn again; more than 1 is for long runs by hand."""
WAIT_SECONDS = 40.0  # for one event: far more than any takes on a busy machine

Disturbance = Callable[["Scene"], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one start of a run left: its report (none if it failed), its own events, and its error."""

    job: TrainJob
    report: Report | None
    events: list[Event]
    error: BaseException | None
    seconds: float

    def of(self, kind: str) -> list[Event]:
        """The events of one kind."""
        return [event for event in self.events if event["kind"] == kind]

    def causes(self) -> list[str]:
        """Why each generation was made."""
        return [event["cause"] for event in self.of("generation")]

    def resumed_step(self) -> int:
        return int(self.of("attempt-started")[0]["resumed_step"])


@dataclass(slots=True)
class Scene:
    """A run as those who disturb it see it: events in their order, and the processes behind them."""

    placement: WarmPlacement
    rng: random.Random
    targets: Sequence[Path]
    crawl_file: Path
    _events: queue.SimpleQueue[Event | None] = field(default_factory=queue.SimpleQueue)
    _pids: dict[int, int] = field(default_factory=dict)  # by member
    _agents: dict[int, str] = field(default_factory=dict)  # by member
    members: Sequence[int] = ()  # of the newest generation, in rank order
    session: Session | None = None
    struck: list[str] = field(default_factory=list)

    def wait(self, kind: str, **fields: Any) -> Event:
        """The next event of this kind whose fields have these values, or satisfy these predicates."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no event {kind} {fields} within {WAIT_SECONDS:g} s") from None
            if event is None:
                raise AssertionError(f"the run ended before an event {kind} {fields}")
            self._note(event)
            if event["kind"] == kind and all(_fits(event.get(name), want) for name, want in fields.items()):
                return event

    def catch_up_with_events(self) -> None:
        """Take note of what has happened until now, without waiting."""
        while not self._events.empty():
            event = self._events.get()
            assert event is not None, "the run has ended already"
            self._note(event)

    def agents(self) -> list[int]:
        """The agents' processes, by place."""
        return self.placement.pids()

    def agent(self, rank: int) -> int:
        """The agent of a rank of the newest generation."""
        return self.placement.pid_of(self._agents[self.members[rank]])

    def launcher(self, rank: int) -> int:
        """The launcher of a rank of the newest generation."""
        return psutil.Process(self.pid(rank)).ppid()

    def pid(self, rank: int) -> int:
        """The process of a rank of the newest generation."""
        return self._pids[self.members[rank]]

    def pid_of(self, member: int) -> int:
        return self._pids[member]

    def strike(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a process of the run."""
        self.struck.append(f"{number.name} to {pid}")
        os.kill(pid, number)

    def hurry(self) -> None:
        """Let a job that crawls train at full speed."""
        self.crawl_file.unlink(missing_ok=True)

    def wait_for_newcomers(self, count: int = 1) -> None:
        """Return when so many newcomers have entered a formation and a step has been done in it."""
        for _ in range(count):
            ranks = self.wait("generation", cause="join")["ranks"]
        self.wait("step", ranks=ranks)

    def pass_a_moment(self, most_seconds: float = 0.02) -> None:
        """Let a random part of a step go by: not to wait for something, but to strike anywhere in it."""
        time.sleep(self.rng.uniform(0.0, most_seconds))

    def _note(self, event: Event) -> None:
        if event["kind"] == "rank-started":
            self._pids[event["member"]] = event["pid"]
            self._agents[event["member"]] = event["agent"].rpartition(".")[0]  # its place, without its number
        elif event["kind"] == "generation":
            self.members = event["members"]


def _fits(value: Any, wanted: Any) -> bool:
    return bool(wanted(value)) if callable(wanted) else value == wanted


class GangRuns:
    """Makes jobs in a folder of their own, and runs them on warm agents."""

    def __init__(self, agents: WarmAgents, folder: Path, rng: random.Random) -> None:
        self.agents = agents
        self.folder = folder
        self.rng = rng
        self._next = 0
        self._crawl_file = folder / "crawl"

    def job(self, recipe: str = "Tiny", *, workers: int = 2, targets: int = 5, **keys: Any) -> TrainJob:
        """A job of the zoo under a new run name, its targets in the test's folder; `keys` as for `zoo.job`."""
        self._next += 1
        run = f"{recipe.lower()}-{self._next}"
        store = {
            "targets": [f"file://{self.folder}/{run}/t{index}" for index in range(targets)],
            "redundancy": {5: 2, 3: 1, 1: 0}[targets],
            "group_steps": 4,
            "deadline": 5.0,
            **keys.pop("store", {}),
        }
        return zoo.job(recipe, **{"run": run, "cluster": {"workers": workers}, "store": store, **keys})

    def crawl(self, **arguments: Any) -> dict[str, Any]:
        """Recipe arguments with which training goes on very slowly, until the scene's `hurry`.

        For what takes an unknown time and must come while steps are done, such as a newcomer's start.
        """
        self._crawl_file.touch()
        return {"crawl_while": str(self._crawl_file), **arguments}

    def hurry(self) -> None:
        """Let a job that crawls train at full speed."""
        self._crawl_file.unlink(missing_ok=True)

    def run(
        self,
        job: TrainJob,
        *faults: str,
        disturb: Disturbance | None = None,
        prove: bool = False,
        spare_agents: int = 0,
    ) -> Outcome:
        """Train `job` to its end, or to its error, while `disturb` strikes. Raises what `disturb` raised.

        spare_agents: how many more than the job needs; they take the place of others at once.
        """
        log = EventLog(job.run)
        placement = self.agents.placement(job.cluster.workers + spare_agents)
        scene = Scene(placement, self.rng, target_folders(job), self._crawl_file)
        report, error = None, None
        begun = time.monotonic()
        try:
            with _disturbed(scene, disturb, log):
                report = train_plainly(
                    job,
                    placement,
                    faults=parse_faults(faults, job),
                    prove=prove,
                    events=log,
                    meanwhile=lambda session: setattr(scene, "session", session),
                )
        except OpenClawError as found:
            error = found
        finally:
            log.close()
        events = [event for event in read_events(job.run) if event["attempt"] == log.attempt]
        return Outcome(job, report, events, error, time.monotonic() - begun)


@contextmanager
def _disturbed(scene: Scene, disturb: Disturbance | None, log: EventLog) -> Iterator[None]:
    if disturb is None:
        yield
        return
    raised: list[BaseException] = []

    def play() -> None:
        try:
            disturb(scene)
        except BaseException as error:  # noqa: BLE001 - the thread's outermost frame: raised again in the test below
            raised.append(error)

    log.listen(scene._events.put, name="scene")
    thread = threading.Thread(target=play, name="disturbance")
    thread.start()
    try:
        yield
    finally:
        scene._events.put(None)
        thread.join(WAIT_SECONDS + 5.0)
        assert not thread.is_alive(), "the disturbance has not ended"
        if raised:
            raise raised[0]


# What an undisturbed run gives

_undisturbed: dict[str, list[oracle.StepFacts]] = {}


def undisturbed(job: TrainJob) -> list[oracle.StepFacts]:
    """The oracle's facts of each step of `job`, computed once for jobs that differ in their machines only."""
    arguments = {name: value for name, value in job.recipe_args.items() if name not in zoo.BITLESS}
    mathematics = [job.recipe, arguments, job.seed, job.global_batch, job.logical_shards, job.clip_norm, job.codec]
    key = json.dumps(mathematics, sort_keys=True)
    if len(_undisturbed.get(key, ())) < job.steps:
        # A trace is no bit, but has to go somewhere.
        quiet = {**arguments, "trace": os.devnull} if "trace" in job.recipe_args else arguments
        _undisturbed[key] = oracle.run_undisturbed(job.model_copy(update={"recipe_args": quiet}))
    return _undisturbed[key][: job.steps]


def assert_exact(outcome: Outcome, *, steps_lost: int = 0) -> Report:
    """The run reached its end with the bits of the undisturbed run, in every step that anybody can see.

    Digests at each boundary and at the end, each step's loss, each record in storage, no step done twice. Only when
    no rank is left that had done them may steps be done again: `steps_lost` of them at most, and the report says so.
    """
    if outcome.error is not None:
        raise outcome.error
    job, report = outcome.job, outcome.report
    assert report is not None
    facts = undisturbed(job)
    for boundary in outcome.of("boundary"):
        if boundary["step"]:
            expected = facts[boundary["step"] - 1]
            assert boundary["state_digest"] == expected.state_digest, f"state after step {boundary['step']}"
            assert boundary["weights_digest"] == expected.weights_digest
            assert boundary["applied"] == expected.applied
    assert report.final_step == job.steps
    assert report.state_digest == facts[-1].state_digest
    assert report.weights_digest == facts[-1].weights_digest
    assert report.applied == facts[-1].applied
    assert report.durable_step == job.steps
    assert report.full_checkpoint_bytes == facts[-1].full_bytes
    repeated = assert_steps_once(outcome)
    assert repeated <= max((recovery.steps_lost or 0 for recovery in report.recoveries), default=0)
    for recovery in report.recoveries:
        assert recovery.steps_lost is not None
        assert recovery.steps_lost <= steps_lost
        _assert_plausible(recovery, job)
    assert_log_exact(job)
    return report


def _assert_plausible(recovery: RecoveryCost, job: TrainJob) -> None:
    assert recovery.detected_seconds is not None
    assert recovery.step is not None
    if recovery.step >= job.steps and recovery.recovered_seconds is None:
        return  # after the last step there was nothing to go on with
    assert recovery.recovered_seconds is not None
    assert recovery.overhead_seconds is not None
    assert 0 <= recovery.detected_seconds <= recovery.recovered_seconds < WAIT_SECONDS
    assert 0 <= recovery.overhead_seconds < WAIT_SECONDS


def assert_steps_once(outcome: Outcome) -> int:
    """Each step was done in order, with the loss and the items of the undisturbed run; how many were done again.

    A gang that was lost as a whole begins again at its durable step.
    """
    facts = undisturbed(outcome.job)
    last = repeated = 0
    for event in outcome.events:
        if event["kind"] == "gang-lost":
            last = 0
        elif event["kind"] == "step":
            repeated += max(0, last - event["step"] + 1)
            last = event["step"]
    skipped = {event["step"] for event in outcome.of("decision")}
    for event in outcome.of("step"):
        expected = facts[event["step"] - 1]
        assert event["items"] == expected.items
        if event["step"] not in skipped:
            assert event["loss"] == expected.loss / expected.items, f"loss of step {event['step']}"
    return repeated


def assert_log_exact(job: TrainJob, *, through: int | None = None) -> None:
    """Every record that storage holds, up to `through` (the end), is the undisturbed run's, byte by byte."""
    facts = undisturbed(job)
    targets = open_targets(job.store.targets, deadline_seconds=job.store.deadline)
    with RunReader(targets, job.run) as reader:
        assert reader.last_step == (job.steps if through is None else through)
        records = list(reader.records(reader.lineage.floor + 1, reader.last_step))
    digests = [hashlib.sha256(record.to_bytes()).hexdigest() for record in records]
    assert digests == [facts[record.step - 1].record_digest for record in records]
    assert [record.step for record in records] == list(range(reader.lineage.floor + 1, reader.last_step + 1))


# Targets and processes


def target_folders(job: TrainJob) -> list[Path]:
    return [Path(url.removeprefix("file://")) for url in job.store.targets]


@contextmanager
def taken_away(folder: Path) -> Iterator[None]:
    """The target is not there in the body, as if unmounted, and the very same comes back after it."""
    away = folder.with_name(f"{folder.name}.away")
    folder.rename(away)
    try:
        yield
    finally:
        away.rename(folder)


@contextmanager
def unwritable(folder: Path) -> Iterator[None]:
    """Nothing can be written to the target's log in the body. (Rights do not bind root, under which tests may run.)"""
    (run,) = (path for path in folder.iterdir() if path.is_dir())
    log, away = run / "log", run / "log.away"
    log.rename(away)
    log.touch()
    try:
        yield
    finally:
        log.unlink()
        away.rename(log)


def flip_a_byte_in_each_stripe(folder: Path, rng: random.Random) -> int:
    """Damage every stripe of a target, groups' and bases'; how many there were."""
    stripes = [path for path in folder.glob("*/log/**/*") if path.is_file()]
    stripes += [path for path in folder.glob("*/base/*/**/*") if path.is_file()]
    for path in stripes:
        data = bytearray(path.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    return len(stripes)


def delete_target(folder: Path) -> None:
    shutil.rmtree(folder)


def wait_until_gone(pids: Collection[int], seconds: float) -> None:
    """Return when none of the processes runs any more; an AssertionError names those that still do."""
    deadline = time.monotonic() + seconds
    while left := [pid for pid in pids if _runs(pid)]:
        assert time.monotonic() < deadline, f"still running after {seconds:g} s: {left}"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def world_sizes(report: Report) -> list[tuple[int, int]]:
    return [(size.from_step, size.ranks) for size in report.world_sizes]


def holdings(pid: int) -> Mapping[str, int]:
    """How many threads, open files and children a process has."""
    process = psutil.Process(pid)
    return {
        "threads": process.num_threads(),
        "files": process.num_fds(),
        "children": len(process.children(recursive=True)),
    }
