"""JSON objects that carry their own digest, in one canonical spelling.

Canonical: keys sorted, no spaces, ASCII only, no NaN or infinity. The key "digest" holds the SHA-256 of the
canonical bytes of the object without it. Reading compares the whole spelling, so any changed byte is seen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from openclaw_tasks.errors import DamagedError
from openclaw_tasks.storage.store import Buffer


def canonical_json(value: Any) -> bytes:
    """The one spelling of `value`. ValueError for NaN and infinities, TypeError for what JSON cannot hold."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii")


def write_digested(fields: Mapping[str, Any]) -> bytes:
    """The object's bytes with its digest added."""
    assert "digest" not in fields
    return canonical_json({**fields, "digest": hashlib.sha256(canonical_json(fields)).hexdigest()})


def read_digested(data: Buffer, name: str) -> dict[str, Any]:
    """The object's fields without the digest; DamagedError naming `name` if a byte is not as written."""
    try:
        fields = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{name}: not a JSON document ({error})") from error
    if not isinstance(fields, dict) or "digest" not in fields:
        raise DamagedError(f"{name}: not a JSON object with a digest")
    digest = fields.pop("digest")
    try:
        expected = write_digested(fields)
    except ValueError as error:
        raise DamagedError(f"{name}: {error}") from error
    if bytes(data) != expected:
        raise DamagedError(f"{name}: the digest {digest!r} does not match the document")
    return fields
