"""Fixtures for all tests: the leak check, and a home folder whose Prefect database exists already."""

from __future__ import annotations

import shutil
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import leaks
import pytest

from openclaw_tasks.steps.server import join_server

TESTS = Path(__file__).parent

CHECKED_FOLDERS = (TESTS / "integration", TESTS / "chaos")


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
    found = leaks.wait_for_leaks(before, mark)
    if found:
        leaks.kill_leftovers(before, mark)
        pytest.fail("left behind: " + "; ".join(found))


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
