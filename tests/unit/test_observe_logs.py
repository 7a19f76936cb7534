"""Log lines: their form, where they go, and what they must not hold."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from openclaw_tasks.observe.logs import RunLogging, log_path


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCLAW_HOME", str(tmp_path / "home"))


def test_lines_have_the_documented_form() -> None:
    logger = logging.getLogger("openclaw_tasks.gang.agent")
    with RunLogging("a-run"):
        logger.info("rank %d started", 1)
        logger.debug("not shown")
        try:
            raise ValueError("why")
        except ValueError:
            logger.exception("failed")
    logger.warning("after the end")
    lines = log_path("a-run").read_text().splitlines()
    assert re.fullmatch(
        r"\[INFO\]\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00\]\[gang\.agent\] rank 1 started", lines[0]
    )
    assert lines[1].endswith("[gang.agent] failed")
    assert lines[-1] == "ValueError: why"
    assert "not shown" not in "".join(lines)
    assert "after the end" not in "".join(lines)


def test_no_credentials_of_a_url_reach_the_log() -> None:
    """PrefectHQ/prefect#11098: no secret in any log, at any level."""
    logger = logging.getLogger("openclaw_tasks.storage")
    with RunLogging("a-run", level="DEBUG"):
        logger.debug("put to %s", "s3://me:hunter2@bucket/key?x=1&X-Amz-Signature=hunter2")
        try:
            raise OSError("https://hunter2@host refused")
        except OSError:
            logger.warning("lost", exc_info=True)
    text = log_path("a-run").read_text()
    assert "hunter2" not in text
    assert "s3://***@bucket/key?x=1&X-Amz-Signature=***" in text


def test_stderr_gets_the_lines_once_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    root_handler = logging.StreamHandler()
    logging.getLogger().addHandler(root_handler)
    try:
        with RunLogging("a-run", stderr=True):
            logging.getLogger("flows.train").info("hello")
    finally:
        logging.getLogger().removeHandler(root_handler)
    assert capsys.readouterr().err.count("hello") == 1


def test_a_log_that_cannot_be_written_costs_lines_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """pytorch/pytorch#10577, for logs: a full disk is counted, not raised and not printed."""
    logger = logging.getLogger("openclaw_tasks.x")
    with RunLogging("a-run", path=Path("/dev/full")) as log:
        for _ in range(3):
            logger.info("line")
        assert log.num_lost == 3
    (tmp_path / "home").write_text("not a folder")
    with RunLogging("a-run", stderr=True):
        logger.info("line")
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    assert printed.count("goes on without it") == 1


def test_logs_are_rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openclaw_tasks.observe.logs._FILE_BYTES", 1000)
    logger = logging.getLogger("openclaw_tasks.x")
    with RunLogging("a-run"):
        for _ in range(200):
            logger.info("x" * 80)
    names = sorted(path.name for path in log_path("a-run").parent.iterdir())
    assert names == ["openclaw.log", *(f"openclaw.log.{number}" for number in range(1, 6))]
    assert all(path.stat().st_size <= 1000 for path in log_path("a-run").parent.iterdir())
