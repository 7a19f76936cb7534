"""What must hold of single values of a job, beyond their types."""

from __future__ import annotations

import keyword
import math
import os.path
from pathlib import PurePosixPath
from typing import Any, Final

from openclaw_tasks.config.expand import FILE_SCHEME, KeyPath, dotted
from openclaw_tasks.config.problems import ConflictError
from openclaw_tasks.config.text import CREDENTIALS_REMEDY, has_credentials, show, suggest

TARGET_SCHEMES: Final = ("file",)

_MAX_DEPTH: Final = 64
_MAX_INTEGER: Final = 2**63


def check_address(address: str) -> str:
    """`address` of a scheduler, HOST:PORT at its end, as it is. Raises ValueError with the remedy."""
    port = int(address.rpartition(":")[2])
    if not 1 <= port <= 65535:
        raise ValueError(f"there is no port {port}; name one from 1 to 65535")
    return address


def check_target(url: str) -> str:
    """`url` of a storage target in its plain form. Raises ValueError with the remedy."""
    if has_credentials(url):
        raise ValueError(CREDENTIALS_REMEDY)
    if not url.isprintable():
        raise ValueError("has a character that cannot be printed; remove it")
    scheme, separator, path = url.partition("://")
    if not separator:
        raise ValueError(f"is no URL; write {show(FILE_SCHEME + url)}")
    if scheme not in TARGET_SCHEMES:
        raise ValueError(f"unknown scheme {show(scheme)}; {suggest(scheme, TARGET_SCHEMES)}")
    if not path.startswith("/"):
        raise ValueError("is relative; name an absolute folder, file:///..., or load the job from its file")
    path = "/" + path.strip("/")
    if path == "/":
        raise ValueError("is the root folder; name a folder for this target alone")
    return FILE_SCHEME + path


def check_targets_apart(targets: list[str]) -> None:
    """Raise ConflictError when two targets are one folder, or one lies in another: both would go at once."""
    # By text alone: whether links make two of them one, the targets' identities show when they are opened.
    paths = [PurePosixPath(os.path.normpath(url.removeprefix(FILE_SCHEME))) for url in targets]
    first_of: dict[PurePosixPath, int] = {}
    for index, path in enumerate(paths):
        first = first_of.setdefault(path, index)
        if first != index:
            raise ConflictError(
                f"store.targets[{first}] and store.targets[{index}] are both {show(targets[index])}; "
                "name a folder of its own for each"
            )
    for index, path in enumerate(paths):
        for parent in path.parents:
            if parent in first_of:
                outer = first_of[parent]
                raise ConflictError(
                    f"store.targets[{index}]={show(targets[index])} lies in "
                    f"store.targets[{outer}]={show(targets[outer])}; name folders side by side"
                )


def check_plain(arguments: dict[str, Any]) -> dict[str, Any]:
    """`recipe_args` as they are. Raises ConflictError unless they are named, plain JSON values."""
    for name, value in arguments.items():
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ConflictError(f"recipe_args: {show(name)} is no parameter's name; name a parameter of the recipe")
        _check_value(value, ("recipe_args", name))
    return arguments


def _check_value(value: Any, key: KeyPath) -> None:
    if len(key) > _MAX_DEPTH:
        raise ConflictError(f"{dotted(key[:2])}: nested more than {_MAX_DEPTH} levels deep; flatten it")
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check_value(item, (*key, index))
    elif isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str) or not _is_encodable(name):
                raise ConflictError(f"{dotted(key)}: the key {show(name)} is not text; write it as text")
            _check_value(item, (*key, name))
    elif isinstance(value, str):
        if not _is_encodable(value):
            raise ConflictError(f"{dotted(key)}={show(value)} is not sound Unicode; write it in UTF-8")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConflictError(f"{dotted(key)}={value} is not finite; write a finite number, or null")
    elif isinstance(value, int) and not -_MAX_INTEGER <= value < _MAX_INTEGER:
        raise ConflictError(f"{dotted(key)}={show(value)} does not fit 64 bits; write it as text")
    elif not (value is None or isinstance(value, bool | int | float)):
        raise ConflictError(
            f"{dotted(key)}={show(value)} is a {type(value).__name__}; "
            "write a number, text, true, false, null, a list or a mapping"
        )


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
