"""Where OpenClaw keeps what belongs to this machine: its home folder, and the index of its runs."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from openclaw_tasks.config.processes import is_known_gone, mark_of
from openclaw_tasks.config.text import show, suggest
from openclaw_tasks.errors import DamagedError, JobError

if TYPE_CHECKING:
    from openclaw_tasks.config.job import TrainJob

RUN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_JOB_FILE_SUFFIXES: Final = (".yaml", ".yml", ".json")


def home() -> Path:
    """`$OPENCLAW_HOME`, or `~/.openclaw`; absolute, not created. Raises JobError where `~` is not known."""
    given = os.environ.get("OPENCLAW_HOME") or "~/.openclaw"
    try:
        return Path(given).expanduser().absolute()
    except RuntimeError:
        raise JobError(f"OPENCLAW_HOME={show(given)}: no such home; set it to an absolute folder") from None


def run_folder(run: str) -> Path:
    """The folder of a run's events, logs and, by default, targets; not created."""
    return home() / "runs" / run


@dataclass(frozen=True, slots=True)
class RunEntry:
    """What this machine remembers of a run: enough to find its targets again."""

    run: str
    job: dict[str, Any]
    """The job in its resolved form, as `TrainJob.document()` gives it."""
    targets: tuple[str, ...]
    state: str
    """Free text for people, such as "running", "finished", "failed"."""
    step: int
    steps: int
    updated: str
    """Wall time in UTC, ISO 8601."""
    process: str
    """The process that wrote this (see `mark_of`): of a run in state "running" the one that trains it."""

    @property
    def standing(self) -> str:
        """The state, seen from now: a process that was killed could not write that it is gone."""
        return "interrupted" if self.state == "running" and is_known_gone(self.process) else self.state


def write_entry(job: TrainJob, *, state: str, step: int) -> RunEntry:
    """Remember `job`'s run in the index; replaces its entry atomically. Raises JobError where it cannot."""
    entry = RunEntry(
        run=job.run,
        job=job.document(),
        targets=tuple(job.store.targets),
        state=state,
        step=step,
        steps=job.steps,
        updated=datetime.now(UTC).isoformat(timespec="seconds"),
        process=mark_of(os.getpid()) or "",
    )
    path = _entry_path(job.run)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, json.dumps(asdict(entry), indent=1).encode())
    except OSError as error:
        raise JobError(f"{path}: {error.strerror}; set OPENCLAW_HOME to a writable folder") from error
    return entry


def read_entry(run: str) -> RunEntry | None:
    """The index's entry of `run`; None only when there definitely is none.

    Raises DamagedError when the entry is there and cannot be read: an unreadable run is not a new one.
    """
    if not RUN_NAME.fullmatch(run):
        return None
    path = _entry_path(run)
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DamagedError(f"{path}: {error.strerror}; make the index readable") from error
    try:
        fields = json.loads(data)
        entry = RunEntry(**{**fields, "targets": tuple(fields["targets"])})
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedError(
            f"{path} is not an index entry ({type(error).__name__}); remove it, and name the run by its job file"
        ) from error
    if entry.run != run or not isinstance(entry.job, dict):
        raise DamagedError(f"{path} is not the entry of run {run!r}; remove it, and name the run by its job file")
    return entry


def forget_run(run: str) -> None:
    """Remove what this machine keeps of `run`: its folder, with the targets in it, and its entry in the index."""
    shutil.rmtree(run_folder(run))
    _entry_path(run).unlink(missing_ok=True)


def known_runs() -> list[str]:
    """Names of the runs in the index, sorted. Raises JobError when the index cannot be listed."""
    try:
        names = [path.name for path in (home() / "index").iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise JobError(f"{home() / 'index'}: {error.strerror}; make it readable") from error
    return sorted(
        name.removesuffix(".json")
        for name in names
        if name.endswith(".json") and RUN_NAME.fullmatch(name.removesuffix(".json"))
    )


def resolve_run(
    name: str,
    set: Mapping[str, object] | Sequence[str] = (),  # noqa: A002 (the command's own word)
) -> TrainJob:
    """The job behind a command's RUN: a job file, or the name of a run in the index.

    What looks like a path (a folder in it, or the suffix of a job file) is a file when it exists; else the
    index is asked, then the shipped jobs. `set` overrides keys as in `TrainJob.load`. Raises JobError, and
    DamagedError for an entry that cannot be read.
    """
    from openclaw_tasks.config.job import TrainJob  # job.py stands on home()
    from openclaw_tasks.config.source import shipped_jobs

    looks_like_file = os.sep in name or name.endswith(_JOB_FILE_SUFFIXES)
    entry = None if looks_like_file and Path(name).exists() else read_entry(name)
    if entry is not None:
        return TrainJob.parse(entry.job, set=set, source=f"the index entry of run {name!r}")
    if looks_like_file or name in shipped_jobs() or Path(name).is_file():
        return TrainJob.load(name, set)
    raise JobError(f"RUN={show(name)} is no job file and no run in {home() / 'index'}; {suggest(name, known_runs())}")


def _entry_path(run: str) -> Path:
    return home() / "index" / f"{run}.json"


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
