"""Logs of the flow's process as `[LEVEL][time][module] message`, rotated, with no credentials in them."""

from __future__ import annotations

import logging
import logging.handlers
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from openclaw_tasks.config.home import run_folder
from openclaw_tasks.config.text import redact

LOGGER_NAMES: Final = ("openclaw_tasks", "flows")

_FILE_BYTES: Final = 10_000_000
_NUM_OLD_FILES: Final = 5


def log_path(run: str) -> Path:
    """Where the log of `run` is; older parts beside it end in .1, .2, ..."""
    return run_folder(run) / "openclaw.log"


class LineFormatter(logging.Formatter):
    """`[LEVEL][time][module] message`: time in UTC, module without the package's name; URLs lose credentials."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        module = record.name.removeprefix("openclaw_tasks.")
        lines = [f"[{record.levelname}][{time}][{module}] {record.getMessage()}"]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        if record.stack_info:
            lines.append(self.formatStack(record.stack_info))
        return redact("\n".join(lines))


class RunLogging:
    """Sends what our loggers say to a run's log file, and to stderr if asked, until closed.

    `own` is a logger for what only the log is to hold, since others tell it to people already.
    Handlers never raise and never print about themselves: a full disk costs log lines, which are counted.
    """

    def __init__(
        self, run: str, *, level: int | str = logging.INFO, stderr: bool = False, path: Path | None = None
    ) -> None:
        self.path = log_path(run) if path is None else path
        self._handlers: list[logging.Handler] = [_QuietStream(sys.stderr)] if stderr else []
        self._file: _QuietFile | None = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _QuietFile(self.path)
            self._handlers.insert(0, self._file)
            problem = None
        except OSError as error:
            problem = error
        self._before = [(logger, logger.level, logger.propagate) for logger in map(logging.getLogger, LOGGER_NAMES)]
        # Not in the tree of loggers: what it is told goes to the run's log and nowhere else.
        self.own = logging.Logger("run", level)
        for handler in self._handlers:
            handler.setFormatter(LineFormatter())
            self.own.addHandler(handler)
        for logger, _, propagate in self._before:
            logger.setLevel(level)
            # Else a handler of the root logger would print each line on stderr again.
            logger.propagate = propagate and not stderr
            for handler in self._handlers:
                logger.addHandler(handler)
        if problem is not None:
            logging.getLogger(__name__).warning("%s: %s; the run goes on without it", self.path, problem.strerror)

    @property
    def num_lost(self) -> int:
        """Records that could not be written to the file."""
        return 0 if self._file is None else self._file.num_lost

    def close(self) -> None:
        """Flush, and leave the loggers as they were. May be called again."""
        for logger, level, propagate in self._before:
            logger.setLevel(level)
            logger.propagate = propagate
            for handler in self._handlers:
                logger.removeHandler(handler)
        for handler in self._handlers:
            self.own.removeHandler(handler)
            try:
                handler.close()
            except OSError:
                pass  # what it could not write, it has counted
        self._before, self._handlers = [], []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _QuietFile(logging.handlers.RotatingFileHandler):
    def __init__(self, path: Path) -> None:
        super().__init__(
            path, maxBytes=_FILE_BYTES, backupCount=_NUM_OLD_FILES, encoding="utf-8", errors="backslashreplace"
        )
        self.num_lost = 0

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        del record
        self.num_lost += 1


class _QuietStream(logging.StreamHandler):  # type: ignore[type-arg]
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Say nothing: a terminal that is gone cannot be told so."""
