"""Files that a command is to write: found to be impossible before the work, not after it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from openclaw_tasks.config.text import show
from openclaw_tasks.errors import JobError


def check_output_file(option: str, file: Path) -> None:
    """Raise JobError, with the remedy, unless `file` can be written where it is. Nothing is left there."""
    folder = file.absolute().parent
    if file.is_dir():
        raise JobError(f"{option} {show(str(file))} is a folder; name a file in it")
    if not folder.is_dir():
        raise JobError(f"{option} {show(str(file))}: there is no folder {folder}; make it, or name another place")
    probe = folder / f".{file.name}.{os.getpid()}-{secrets.token_hex(4)}.probe"
    try:
        probe.touch(exist_ok=False)
        probe.unlink()
        if file.exists():
            os.close(os.open(file, os.O_WRONLY))
    except OSError as error:
        raise JobError(
            f"{option} {show(str(file))} cannot be written ({error.strerror}); name another place"
        ) from error
