"""Finds the Prefect API that the user has configured, without importing Prefect.

Prefect reads its settings once, when it is imported, so the address of a server of ours must stand in the
environment before that; and whether one of ours is wanted depends on this. The places, in the order of
Prefect 3.9 (prefect/settings/base.py and sources.py): environment, `.env`, `prefect.toml`, `pyproject.toml`,
and the active profile.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_VARIABLE: Final = "PREFECT_API_URL"


def configured_api_url(environment: Mapping[str, str] | None = None, folder: Path | None = None) -> str | None:
    """The API address that Prefect would use in `folder`; None if it would start a server itself.

    `environment` and `folder` are those of this process by default.
    """
    environment = os.environ if environment is None else environment
    folder = Path.cwd() if folder is None else folder
    dotenv = _dotenv(folder / ".env")
    found = (
        environment.get(_VARIABLE)
        or dotenv.get(_VARIABLE)
        or _entry(_toml(folder / "prefect.toml"), "api", "url")
        or _entry(_toml(folder / "pyproject.toml"), "tool", "prefect", "api", "url")
        or _entry(_active_profile(environment, dotenv), _VARIABLE)
    )
    return found.rstrip("/") if found else None


def profiles_file(environment: Mapping[str, str], dotenv: Mapping[str, str]) -> Path:
    """Where Prefect looks for profiles; the file need not exist."""
    named = environment.get("PREFECT_PROFILES_PATH") or dotenv.get("PREFECT_PROFILES_PATH")
    if named:
        return Path(named)
    return Path(environment.get("PREFECT_HOME") or Path.home() / ".prefect") / "profiles.toml"


def _active_profile(environment: Mapping[str, str], dotenv: Mapping[str, str]) -> dict[str, Any]:
    document = _toml(profiles_file(environment, dotenv))
    active = environment.get("PREFECT_PROFILE") or document.get("active")
    # A profile that is not in the user's file means Prefect's own default one, which has no address.
    profile = document.get("profiles", {}).get(active, {})
    return profile if isinstance(profile, dict) else {}


def _entry(document: Mapping[str, Any], *keys: str) -> str | None:
    value: object = document
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) and value else None


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # Absent, or not ours to complain about: Prefect reads the same file and says what is wrong with it.
        return {}


def _dotenv(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return {}
    pairs = (line.strip().removeprefix("export ").partition("=") for line in lines if "=" in line)
    return {name.strip(): value.strip().strip("'\"") for name, _, value in pairs if not name.startswith("#")}
