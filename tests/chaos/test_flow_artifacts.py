"""What people see of a run in the Prefect UI: through the API that feeds it, and in a browser."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from drills import Drills, Struck

pytestmark = [pytest.mark.chaos, pytest.mark.flow]

BROWSER_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1300,900",
]


@pytest.fixture
def flow_run(drills: Drills, struck: Struck) -> str:
    """The id of the struck run's flow run."""
    del struck
    (found,) = drills.api.flow_runs("struck")
    identity: str = found["id"]
    return identity


def picture_in(markdown: str) -> ElementTree.Element:
    """The SVG that an artifact holds."""
    encoded = re.fullmatch(r"!\[Loss of struck\]\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)\n", markdown)
    assert encoded is not None
    return ElementTree.fromstring(base64.b64decode(encoded.group(1)))


def test_plan_loss_recoveries_and_storage_are_published(drills: Drills, flow_run: str) -> None:
    """Each newest one tells the run's end."""
    artifacts = drills.api.artifacts(flow_run)
    assert set(artifacts) == {f"struck-{what}" for what in ("plan", "loss", "recoveries", "storage")}
    plan = artifacts["struck-plan"]
    for line in (
        "| Recipe | `drill_recipe:Drill` |",
        "| Ranks | 2, 1 thread each |",
        "| Storage | 3 data and 2 parity stripes on 5 targets; any 2 may be lost |",
    ):
        assert line in plan
    assert len(re.findall(r"\| [01]\.[01] \| \S+ \| cpu \| \d+ \| ", plan)) == 2
    recoveries = artifacts["struck-recoveries"]
    assert recoveries.startswith("# What happened on 20")
    for row in ("fault struck | kill-rank:1@6", "fault struck | delete-target:2@17", "**recovered** | in "):
        assert row in recoveries
    assert recoveries.rstrip().splitlines()[-1].endswith("| 40 | finished |  |")
    storage = artifacts["struck-storage"]
    assert len(re.findall(r"^\| [0134] \| `file://.*/struck/t[0134]` \| well \|$", storage, re.MULTILINE)) == 4
    assert re.search(r"^\| 2 \| `file://.*/struck/t2` \| \*\*is not there", storage, re.MULTILINE)
    assert "1 target not well; 1 more may be lost." in storage
    assert "| Durable up to step | 40 |" in storage
    assert "| Verified at steps | 10, 20, 30, 40 |" in storage


def test_the_loss_picture_marks_the_recovery_and_the_ranks(drills: Drills, flow_run: str) -> None:
    """A picture on its own: no script, nothing fetched from elsewhere."""
    svg = picture_in(drills.api.artifacts(flow_run)["struck-loss"])
    texts = [element.text or "" for element in svg.iter() if element.tag.endswith("text")]
    assert "Loss of struck" in texts
    assert any("1 recovery, 0 steps lost" in text for text in texts)
    assert any(text.startswith("rank killed by signal 9, ") for text in texts)
    titles = [element.text or "" for element in svg.iter() if element.tag.endswith("title")]
    assert "1 rank from step 6" in titles
    assert not [element for element in svg.iter() if element.tag.endswith(("script", "image", "foreignObject"))]


def test_what_happens_stands_in_the_flow_runs_log_and_in_the_runs_own(drills: Drills, flow_run: str) -> None:
    lines = drills.api.log_lines(flow_run)
    own = (drills.folder("struck") / "openclaw.log").read_text()
    for told in (
        "step 1: 2 ranks begin",
        "fault kill-rank:1@6 strikes",
        "step 6: rank killed by signal 9; 1 rank goes on at once",
        "step 40 is proven: rebuilt from the fewest stripes, same bits",
    ):
        assert lines.count(told) == 1
        assert own.count(told) == 1
    assert sum(line.startswith("target 2 is gone") for line in lines) == 1


def test_stages_show_as_named_task_runs(drills: Drills, flow_run: str) -> None:
    names = {run["name"]: run["state"]["type"] for run in drills.api.task_runs(flow_run)}
    expected = {"profile nodes", "plan", "evaluate step 40", "finish"}
    expected |= {
        f"{what} {step}" for step in (10, 20, 30, 40) for what in ("train to step", "base of step", "verify step")
    }
    assert set(names) == expected
    assert set(names.values()) == {"COMPLETED"}


class Browser:
    """A headless chromium."""

    def __init__(self, program: str, folder: Path, site: str) -> None:
        self._program, self._folder, self._site = program, folder, site

    def shows(self, path: str, name: str, *patterns: str) -> None:
        """The page comes to show all patterns; what it looks like is left as a picture in the test's folder."""
        for seconds in (5, 10, 20, 40):  # a busy machine's page is not there yet
            page = self._look(path, name, seconds)
            if all(re.search(pattern, page) for pattern in patterns):
                return
        raise AssertionError(f"{path} lacks {[pattern for pattern in patterns if not re.search(pattern, page)]}")

    def _look(self, path: str, name: str, seconds: int) -> str:
        profile = f"--user-data-dir={self._folder / 'profile'}"
        picture = f"--screenshot={self._folder / f'{name}.png'}"
        budget = f"--virtual-time-budget={1000 * seconds}"
        command = [self._program, *BROWSER_FLAGS, profile, budget, "--dump-dom", picture, f"{self._site}{path}"]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout


@pytest.fixture
def browser(drills: Drills, tmp_path: Path) -> Browser:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium is installed: apt-get install -y chromium")
    return Browser(program, tmp_path, drills.api.url.removesuffix("/api"))


@pytest.mark.browser
def test_the_ui_shows_the_run_its_plan_its_timeline_and_its_picture(
    drills: Drills, flow_run: str, browser: Browser, struck: Struck, tmp_path: Path
) -> None:
    """The page that the command names opens; what it links to shows."""
    pages = re.findall(r"see (http://\S+)", struck.ended.err)
    assert pages == [f"{drills.api.url.removesuffix('/api')}/runs/flow-run/{flow_run}"]
    browser.shows(f"/runs/flow-run/{flow_run}", "run", "struck", "Completed", "1 rank goes on at once")
    artifacts = drills.api.artifact_ids(flow_run)
    browser.shows(
        f"/artifacts/artifact/{artifacts['struck-plan']}", "plan", "<h1", "Plan of", "<table", "3 data and 2 parity"
    )
    browser.shows(
        f"/artifacts/artifact/{artifacts['struck-recoveries']}",
        "recoveries",
        "What happened",
        'strong">recovered<',
        "rank killed by signal 9",
        "delete-target:2@17",
    )
    browser.shows(
        f"/artifacts/artifact/{artifacts['struck-loss']}",
        "loss",
        r'<img[^>]+src="data:image/svg\+xml;base64,[^"]+"[^>]*alt="Loss of struck"',
    )
    assert all((tmp_path / f"{name}.png").stat().st_size > 10_000 for name in ("run", "plan", "recoveries", "loss"))
