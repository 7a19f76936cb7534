"""Fixtures of the drills: one home with one Prefect server for all of them, and the undisturbed run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
from drills import Api, Drills, Struck

from openclaw_tasks.steps.server import join_server


@pytest.fixture(scope="session")
def drills(prefect_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drills]:
    """A home whose server is kept up for all tests: each command joins it."""
    home = tmp_path_factory.mktemp("drills")
    (home / "prefect").mkdir(mode=0o700)
    for name in ("server.db", "memo_store.toml"):
        shutil.copy2(prefect_folder / name, home / "prefect" / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        resource_tracker.ensure_running()  # of this process, for good: no test's leak
        lease = join_server(home)
    with lease:
        yield Drills(home, Api(lease.api_url))


@pytest.fixture(scope="session")
def calm(drills: Drills) -> dict[str, Any]:
    """The report of the undisturbed run."""
    ended = drills.train("calm", "--json")
    assert ended.status == 0, ended.err
    report: dict[str, Any] = ended.document
    return report


@pytest.fixture(scope="session")
def struck(drills: Drills, tmp_path_factory: pytest.TempPathFactory) -> Struck:
    """The same run with a rank killed and a target deleted."""
    report_file = tmp_path_factory.mktemp("struck") / "report.json"
    faults = ["--fault", "kill-rank:1@6", "--fault", "delete-target:2@17"]
    ended = drills.train("struck", *faults, "--report", report_file, "--json")
    assert ended.status == 0, ended.err
    return Struck(ended, report_file)
