"""Writing the weights to a file that anybody can read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from openclaw_tasks.errors import RunError, UsageError
from openclaw_tasks.exact.state import TrainState
from openclaw_tasks.exact.tensor_bytes import pack_tensors


def export_weights(state: TrainState, path: str | Path) -> None:
    """Write exactly the entries of `state.weights()` as a safetensors file, without metadata.

    The file appears whole or not at all: a temporary one beside it is made durable and renamed.
    Raises UsageError when the folder does not exist; RunError, naming need and free bytes, when the
    file cannot be written.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise UsageError(f"cannot export to {target}: there is no folder {target.parent}; make it first")
    data = pack_tensors(state.weights())
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise RunError(
            f"cannot export to {target}: {error.strerror}; {data.nbytes} bytes needed, "
            f"{_free_bytes(target.parent)} free"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _free_bytes(folder: Path) -> int:
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize
