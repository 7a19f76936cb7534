"""What a job file leaves to its place: `~`, `$VAR`, and paths relative to the job file's folder."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from openclaw_tasks.config.home import home
from openclaw_tasks.config.text import CREDENTIALS_REMEDY, has_credentials, show
from openclaw_tasks.errors import JobError

KeyPath = tuple[str | int, ...]

FILE_SCHEME: Final = "file://"

_VARIABLE: Final = re.compile(r"\$(?:(\$)|([A-Za-z_][A-Za-z0-9_]*)|\{([^{}]*)\})", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_TILDE: Final = re.compile(r"~([A-Za-z0-9._-]*)(?=/|$)", re.ASCII)
_PATH_KEYS: Final = ("data", "path")
_PATH_KEY_ENDINGS: Final = ("_path", "_dir", "_file")
_PATH_START: Final = re.compile(r"\.{1,2}/|\.{1,2}$|~[A-Za-z0-9._-]*/|~$", re.ASCII)

_MAX_VALUES: Final = 100_000
_MAX_CHARACTERS: Final = 1_000_000
_MAX_DEPTH: Final = 64


def dotted(key: KeyPath) -> str:
    """`("store", "targets", 0)` as `store.targets[0]`."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{_plain(part)}" if text else _plain(part)
    return text


def _plain(part: object) -> str:
    return part if isinstance(part, str) and re.fullmatch(r"[\w-]{1,60}", part) else show(part)


class Expansion:
    """Expands the values of one document, which together have one bound."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._num_values = 0
        self._num_characters = 0

    def expand(self, value: Any, key: KeyPath) -> Any:
        """`value` with every string in it expanded, as the job's key `key` takes it; nothing in it is shared.

        `$NAME` and `${NAME}` come from the environment (`$$` is a dollar; OPENCLAW_HOME has its default), then a
        leading `~` is a home folder. Relative paths of `file://` targets, and of `recipe_args` that are paths
        (under `data`, `path`, or a key ending in `_path`, `_dir` or `_file`; or text that begins with `./`, `../`
        or a home folder), become absolute from the folder. Raises JobError naming the key: an undefined variable, an
        unknown home, a value too deep, or a document too large (aliases of aliases).
        """
        self._num_values += 1
        if self._num_values > _MAX_VALUES:
            raise JobError(f"{dotted(key[:2])}: more than {_MAX_VALUES} values; name a file that holds them")
        if len(key) > _MAX_DEPTH:
            raise JobError(f"{dotted(key[:2])}: nested more than {_MAX_DEPTH} levels deep; flatten it")
        if isinstance(value, str):
            return self._expand_text(value, key)
        if isinstance(value, list | tuple):
            return [self.expand(item, (*key, index)) for index, item in enumerate(value)]
        if isinstance(value, dict):
            return {name: self.expand(item, (*key, name)) for name, item in value.items()}
        return value

    def _expand_text(self, text: str, key: KeyPath) -> str:
        self._count(len(text), key)
        text = _VARIABLE.sub(lambda match: self._variable(match, key), text)
        if text.startswith(FILE_SCHEME):
            if has_credentials(text):  # before the text becomes part of a path
                raise JobError(f"{dotted(key)}={show(text)}: {CREDENTIALS_REMEDY}")
            path = _home_of(text.removeprefix(FILE_SCHEME), key, must_exist=True)
            return FILE_SCHEME + self._absolute(path) if path else text
        is_path = key[:1] == ("recipe_args",) and _names_path(key, text)
        text = _home_of(text, key, must_exist=is_path)
        return self._absolute(text) if is_path and "://" not in text else text

    def _variable(self, match: re.Match[str], key: KeyPath) -> str:
        value = _variable(match, key)
        self._count(len(value), key)
        return value

    def _count(self, num_characters: int, key: KeyPath) -> None:
        """One long text behind many aliases is small until it is written out."""
        self._num_characters += num_characters
        if self._num_characters > _MAX_CHARACTERS:
            raise JobError(f"{dotted(key[:2])}: more than {_MAX_CHARACTERS} characters; name a file that holds them")

    def _absolute(self, path: str) -> str:
        # Keeps "..": collapsing it by text would go elsewhere through a linked folder.
        return str(self._folder / path)


def _variable(match: re.Match[str], key: KeyPath) -> str:
    dollar, bare, braced = match.groups()
    if dollar:
        return "$"
    name: str = bare if bare is not None else braced
    if name == "OPENCLAW_HOME":
        return str(home())
    value = os.environ.get(name) if _NAME.fullmatch(name) else None
    if value is None:
        raise JobError(
            f"{dotted(key)}: the environment variable {show(name)} is not defined; define it, or write $$ for a dollar"
        )
    return value


def _home_of(text: str, key: KeyPath, *, must_exist: bool) -> str:
    match = _TILDE.match(text)
    if match is None:
        return text
    try:
        expanded = Path(match.group()).expanduser()
    except RuntimeError:
        if not must_exist:
            return text
        raise JobError(
            f"{dotted(key)}={show(text)}: no home folder is known for {match.group()!r}; "
            "write ./ before a name that begins with ~"
        ) from None
    return f"{expanded}{text[match.end() :]}"


def _names_path(key: KeyPath, text: str) -> bool:
    """Whether a value of `recipe_args` is a path; of a list, the name that holds it decides."""
    name = next((part for part in reversed(key[1:]) if isinstance(part, str)), "")
    named = name in _PATH_KEYS or name.endswith(_PATH_KEY_ENDINGS)
    return bool(text) and (named or _PATH_START.match(text) is not None)
