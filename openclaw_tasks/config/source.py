"""Where a job comes from: its file or a shipped one, and the `--set` that changes it."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from openclaw_tasks.config.expand import Expansion, dotted
from openclaw_tasks.config.text import one_line, show, show_path, suggest
from openclaw_tasks.config.yaml_source import parse_yaml
from openclaw_tasks.errors import JobError

SHIPPED_FOLDER: Final = Path(__file__).parent.parent / "jobs"

_MAX_FILE_BYTES: Final = 300_000


class JobFile(NamedTuple):
    """A job file, and the folder that its relative paths are taken from."""

    path: Path
    folder: Path


class Override(NamedTuple):
    """One `--set`: the key's parts, and its value."""

    key: tuple[str, ...]
    value: Any


def shipped_jobs() -> list[str]:
    """Names of the jobs that come with the package, sorted."""
    return sorted(path.stem for path in SHIPPED_FOLDER.glob("*.yaml"))


def locate_job(name: str | os.PathLike[str]) -> JobFile:
    """The file that `name` means; a shipped job's name goes before a file of the same name (`./demo`).

    Raises JobError when there is no such file.
    """
    text = os.fspath(name)
    if isinstance(name, str) and text in shipped_jobs():
        return JobFile(SHIPPED_FOLDER / f"{text}.yaml", Path.cwd())
    # Not resolve(): links may be replaced (as in mounted configuration), the job's folder should not be.
    try:
        path = Path(text).expanduser().absolute()
    except RuntimeError:  # "~nobody"
        path = Path(text).absolute()
    if not _exists(path):
        nearest = suggest(text, shipped_jobs())
        raise JobError(f"JOB='{show_path(text)}' is no file; correct the path, or name a shipped job ({nearest})")
    return JobFile(path, path.parent)


def read_yaml_file(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, its keys text. Raises JobError naming file, place and remedy."""
    source = show_path(path)
    document = parse_yaml(_read_text(path, source), source)
    if document is None:
        raise JobError(f"{source} is empty; a job needs at least run, recipe, steps and global_batch")
    if not isinstance(document, dict):
        kind = "a list" if isinstance(document, list) else f"the value {show(document)}"
        raise JobError(f"{source} holds {kind}; a job is a mapping: lines such as 'steps: 200'")
    return document


def expand_document(document: Mapping[str, Any], file: JobFile) -> dict[str, Any]:
    """`document` of `file` with everything that the place decides filled in. Raises JobError."""
    expansion = Expansion(file.folder)
    try:
        return {name: expansion.expand(value, (name,)) for name, value in document.items()}
    except JobError as error:
        raise JobError(f"{show_path(file.path)}: {error}") from None


def read_overrides(given: Mapping[str, object] | Sequence[str]) -> tuple[Override, ...]:
    """The overrides of a `{"a.b": value}` or `["a.b=value"]`; text values are YAML. Raises JobError."""
    if isinstance(given, Mapping):
        return tuple(_read_override(key, value) for key, value in given.items())
    if isinstance(given, str) or not all(isinstance(text, str) for text in given):
        raise JobError(f"set={show(given)}: not a list of texts; write ['key=value', ...]")
    overrides = []
    for text in given:
        key, separator, value = text.partition("=")
        if not separator:
            raise JobError(f"--set {show(text)}: no '='; write --set key=value, for example --set steps=200")
        overrides.append(_read_override(key, value))
    return tuple(overrides)


def apply_overrides(document: dict[str, Any], overrides: Sequence[Override], folder: Path) -> None:
    """Put each override's expanded value at its key in `document`, changing it and no mapping inside it."""
    expansion = Expansion(folder)
    for key, value in overrides:
        section = document
        for depth, name in enumerate(key[:-1]):
            inner = section.get(name, {})
            if not isinstance(inner, dict):
                raise JobError(
                    f"--set {dotted(key)}: {dotted(key[: depth + 1])}={show(inner)} holds no keys; set it as a whole"
                )
            section[name] = dict(inner)
            section = section[name]
        section[key[-1]] = expansion.expand(value, key)


def _read_override(key: object, value: object) -> Override:
    parts = tuple(str(key).strip().split("."))
    if not all(parts) or parts[0] == "folder":
        raise JobError(f"--set {show(key)}: not a key; write --set key=value or --set section.key=value")
    if isinstance(value, str):
        value = parse_yaml(value, f"--set {dotted(parts)}")
    return Override(parts, value)


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL, or no sound Unicode
        return False
    except OSError:
        return True  # there, and not to be read: reading tells why
    return True


def _read_text(path: Path, source: str) -> str:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            if stat.S_ISDIR(status.st_mode):
                raise JobError(f"{source} is a folder; name a job file, such as {source.rstrip('/')}/job.yaml")
            raise JobError(f"{source} is no regular file; name a job file")
        if status.st_size > _MAX_FILE_BYTES:
            raise JobError(f"{source} has {status.st_size} bytes; a job file has at most {_MAX_FILE_BYTES}")
        data = path.read_bytes()
    except OSError as error:
        raise JobError(f"{source}: {one_line(error.strerror or str(error))}; name a file that can be read") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise JobError(
            f"{source}: byte {error.start} (0x{data[error.start]:02x}) is not UTF-8; save it as UTF-8 text"
        ) from None
