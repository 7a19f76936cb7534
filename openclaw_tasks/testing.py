"""For users' tests: the pytest fixture `openclaw_run`, which trains a job through the real flow.

Loaded by pytest in every project where OpenClaw is installed, so it imports nothing heavy before a test asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from openclaw_tasks.config.faults import Fault
    from openclaw_tasks.config.job import TrainJob
    from openclaw_tasks.observe.report import Report


@pytest.fixture(scope="session")
def openclaw_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home folder for the whole session, with one Prefect server for all its runs."""
    from openclaw_tasks.steps.server import join_server

    home = tmp_path_factory.mktemp("openclaw")
    with join_server(home, wait_ready=False):
        yield home


@pytest.fixture
def openclaw_run(
    openclaw_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[TrainJob, Sequence[Fault | str]], Report]:
    """`openclaw_run(job, faults=()) -> Report`: train through Prefect, Dask and real rank processes.

    Runs live in a folder of the test session, never in the user's own home. What the recipe raises is raised here.
    """
    monkeypatch.setenv("OPENCLAW_HOME", os.fspath(openclaw_home))

    def run(job: TrainJob, faults: Sequence[Fault | str] = ()) -> Report:
        from openclaw_tasks.api import train

        return train(job, faults=faults)

    return run
