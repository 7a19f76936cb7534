"""Who holds a run, and for how long a start waits for them: on a clock of the test's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from openclaw_tasks.checkpoint.documents import Claim, Holder, Process
from openclaw_tasks.checkpoint.holder import await_lease, describe_process, is_known_dead, this_process
from openclaw_tasks.errors import RunLiveError
from openclaw_tasks.storage.memory_store import MemoryStore
from openclaw_tasks.storage.targets import TargetSet

ELSEWHERE = Process(host="another", boot="b", pid=7, started=1)


def dead_process() -> Process:
    """A process of this host that has ended."""
    child = subprocess.Popen(["sleep", "60"])
    process = describe_process(child.pid)
    child.kill()
    child.wait()
    assert process is not None
    return process


@dataclass(slots=True)
class Scene:
    """Three targets, and a clock that only pauses move; `events` happen when their time has come."""

    targets: TargetSet = field(
        default_factory=lambda: TargetSet(
            ("m0", "m1", "m2"), tuple(MemoryStore(f"m{i}") for i in range(3)), ("u",) * 3, {}, frozenset()
        )
    )
    now: float = 0.0
    events: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def hold(
        self,
        process: Process,
        *,
        epoch: int = 1,
        counter: int = 1,
        released: bool = False,
        agents: tuple[Process, ...] = (),
    ) -> None:
        holder = Holder(
            run="lm",
            epoch=epoch,
            writer="w",
            counter=counter,
            released=released,
            durable_step=0,
            agents=agents,
            process=process,
        )
        for _, store in self.targets.present():
            store.replace(holder.key, holder.to_bytes())

    def claim(self, epoch: int) -> None:
        claim = Claim(run="lm", epoch=epoch, writer="w", process=ELSEWHERE)
        for _, store in self.targets.present():
            store.create(claim.key, claim.to_bytes())

    def pause(self, seconds: float) -> None:
        self.now += seconds
        for when, event in [event for event in self.events if event[0] <= self.now]:
            self.events.remove((when, event))
            event()

    def wait(self, lease_seconds: float = 10.0) -> float:
        """Seconds until the run could be taken."""
        await_lease(self.targets, "lm", lease_seconds=lease_seconds, clock=lambda: self.now, pause=self.pause)
        return self.now


def test_nobody_is_waited_for_in_a_new_run() -> None:
    assert Scene().wait() == 0


def test_a_released_run_is_free_at_once() -> None:
    scene = Scene()
    scene.claim(1)
    scene.hold(ELSEWHERE, released=True)
    assert scene.wait() == 0


def test_a_holder_elsewhere_is_watched_for_the_lease_and_then_taken_over() -> None:
    """Age is measured on our own clock alone (rubrikinc/kronos#10)."""
    scene = Scene()
    scene.claim(1)
    scene.hold(ELSEWHERE)
    assert scene.wait(10.0) == pytest.approx(10.0, abs=0.5)


def test_a_counter_that_moves_is_a_living_holder() -> None:
    scene = Scene()
    scene.claim(1)
    scene.hold(ELSEWHERE, counter=8)
    scene.events.append((2.0, lambda: scene.hold(ELSEWHERE, counter=9)))
    with pytest.raises(RunLiveError, match="another pid 7"):
        scene.wait()
    assert scene.now < 3.0


def test_a_holder_that_died_on_this_host_is_not_waited_for() -> None:
    scene = Scene()
    scene.claim(1)
    scene.hold(dead_process())
    assert scene.wait() == 0


def test_a_dead_holders_agents_may_put_what_they_hold_first() -> None:
    agent = subprocess.Popen(["sleep", "60"])
    process = describe_process(agent.pid)
    assert process is not None
    scene = Scene()
    scene.claim(1)
    scene.hold(dead_process(), agents=(process,))

    def end() -> None:
        agent.kill()
        agent.wait()

    scene.events.append((3.0, end))
    assert scene.wait() == pytest.approx(3.0, abs=0.5)


def test_a_holder_of_this_host_that_lives_is_refused_only_once_it_moves() -> None:
    """A stopped process lives, and holds nothing any more."""
    scene = Scene()
    scene.claim(1)
    scene.hold(this_process())
    assert scene.wait(10.0) == pytest.approx(10.0, abs=0.5)


def test_a_claim_newer_than_any_holder_document_is_waited_for() -> None:
    """Somebody claims at this very moment and has not said who it is."""
    scene = Scene()
    scene.claim(1)
    scene.claim(2)
    scene.hold(dead_process(), epoch=1)
    scene.events.append((0.5, lambda: scene.hold(ELSEWHERE, epoch=2)))
    with pytest.raises(RunLiveError, match="another pid 7"):
        scene.wait()


def test_a_pid_used_again_is_not_the_process_it_was() -> None:
    here = this_process()
    assert here.pid == os.getpid()
    assert not is_known_dead(here, here)
    assert is_known_dead(here.model_copy(update={"started": here.started + 1}), here)
    assert is_known_dead(here.model_copy(update={"boot": "before"}), here)
    assert not is_known_dead(ELSEWHERE, here)


def test_a_process_that_nobody_has_reaped_is_dead() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert describe_process(child.pid) is None
    child.wait()
