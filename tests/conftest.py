"""Fixtures for all tests: the leak check, agents kept warm, and a home folder whose Prefect database exists already."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import leaks
import psutil
import pytest

from openclaw_tasks.gang.gang import Gang
from openclaw_tasks.gang.placing import WarmAgents
from openclaw_tasks.observe.events import EventLog
from openclaw_tasks.steps.server import join_server

if TYPE_CHECKING:
    from gang_runs import GangRuns

TESTS = Path(__file__).parent

CHECKED_FOLDERS = (TESTS / "integration", TESTS / "chaos")

NUM_WARM_AGENTS = 4
SEED = "OPENCLAW_TEST_SEED"
"""Set it to what a failed test has printed, to strike at the same steps again."""
_WARM = pytest.StashKey[WarmAgents]()


def pytest_configure() -> None:
    """A script that starts the tests in the background has SIGINT ignored, and so would all that the tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail an integration or chaos test that leaves a process, port, shared memory or open files behind."""
    if not any(folder in request.path.parents for folder in CHECKED_FOLDERS):
        yield
        return
    mark = uuid.uuid4().hex
    monkeypatch.setenv(leaks.MARK, mark)
    before = leaks.take_stock()
    yield
    warm = request.session.stash.get(_WARM, None)
    found = leaks.wait_for_leaks(before, mark, expected=lambda: _warm_processes(warm))
    if found:
        leaks.kill_leftovers(before, mark, _warm_processes(warm))
        pytest.fail("left behind: " + "; ".join(found))


@pytest.fixture(scope="session")
def warm_agents(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmAgents]:
    """Agents that serve one test's gang after the other's, all up before the first test.

    A test may kill them: others follow. Ranks and spare jobs that they leave behind are leaks like any.
    """
    import zoo  # with torch, which most tests do without

    with WarmAgents(tmp_path_factory.mktemp("agents")) as agents:
        placement = agents.placement(NUM_WARM_AGENTS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPENCLAW_HOME", str(tmp_path_factory.mktemp("warming-up")))
            job = zoo.job(cluster={"workers": NUM_WARM_AGENTS})
            with Gang(job, placement, EventLog(job.run)) as gang:
                gang.profile()  # answered by processes that the launchers have forked
        request.session.stash[_WARM] = agents
        yield agents
        del request.session.stash[_WARM]


@pytest.fixture
def gang(
    warm_agents: WarmAgents, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> GangRuns:
    """Runs on warm agents, in a home and with targets of this test's own."""
    from gang_runs import GangRuns

    monkeypatch.setenv("OPENCLAW_HOME", str(tmp_path / "home"))
    seed = os.environ.get(SEED) or uuid.uuid4().hex[:8]
    print(f"{SEED}={seed}")  # shown when the test fails
    return GangRuns(warm_agents, tmp_path, random.Random(f"{seed} {request.node.name}"))


def _warm_processes(agents: WarmAgents | None) -> set[int]:
    """The warm agents, their zygote, and their launchers, as of now."""
    if agents is None:
        return set()
    launchers = psutil.Process(agents.zygote_pid).children()
    return {*agents.pids(), agents.zygote_pid, *(child.pid for child in launchers)}


@pytest.fixture(scope="session")
def prefect_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local server's folder after its first start: creating the database is most of that start."""
    home = tmp_path_factory.mktemp("first-start")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        join_server(home).close()
    with closing(sqlite3.connect(home / "prefect" / "server.db")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return home / "prefect"


@pytest.fixture
def prepared_home(prefect_folder: Path, tmp_path: Path) -> Path:
    """A fresh home folder in which the local server starts in 4 s rather than 12."""
    home = tmp_path / "home"
    (home / "prefect").mkdir(mode=0o700, parents=True)
    for name in ("server.db", "memo_store.toml"):
        shutil.copy2(prefect_folder / name, home / "prefect" / name)
    return home
