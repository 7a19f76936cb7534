"""Plain values as JSON that gives back equal values of equal types.

JSON alone turns tuples into lists, integer keys into text and loses bits of floats or refuses NaN
(reported as pytorch/pytorch#140900 for optimizer state). So None, bool, int, str and list stand for
themselves, and everything else is a one-key object: {"float": hex}, {"tuple": [...]},
{"dict": [[key, value], ...]} ordered by their JSON text. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeAlias

from openclaw_tasks.errors import DamagedError, RunError

Json: TypeAlias = "bool | int | str | list[Json] | dict[str, Json] | None"
OnOther: TypeAlias = Callable[[object, str], "dict[str, Json]"]
OnTag: TypeAlias = Callable[[str, Json], object]


def canonical_json(value: Json) -> bytes:
    """The one ASCII text of a JSON value: keys sorted, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def join_path(path: str, piece: object) -> str:
    """`path/piece`, escaped as in RFC 6901, so that different paths never have the same text."""
    return f"{path}/{str(piece).replace('~', '~0').replace('/', '~1')}"


def refuse_other(value: object, path: str) -> dict[str, Json]:
    """The default for values of any other type.

    Raises RunError, which names the place.
    """
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise RunError(
        f"{path} is a {kind}, which cannot be stored exactly; "
        "use None, bool, int, float, str, list, tuple, dict or a tensor"
    )


def encode_plain(value: object, path: str, on_other: OnOther = refuse_other) -> Json:
    """`value` as JSON; values of other types (subclasses too) go to `on_other(value, path)`.

    Raises RunError for a value that cannot be kept exactly.
    """
    if value is None or type(value) is bool or type(value) is int or type(value) is str:
        return value
    if type(value) is float:
        return {"float": value.hex()}
    if type(value) is list:
        return [encode_plain(item, join_path(path, i), on_other) for i, item in enumerate(value)]
    if type(value) is tuple:
        return {"tuple": [encode_plain(item, join_path(path, i), on_other) for i, item in enumerate(value)]}
    if type(value) is dict:
        pairs: list[Json] = [
            [encode_plain(key, join_path(path, "key")), encode_plain(item, join_path(path, key), on_other)]
            for key, item in value.items()
        ]
        return {"dict": sorted(pairs, key=canonical_json)}
    return on_other(value, path)


def _refuse_tag(tag: str, _content: Json) -> object:
    raise DamagedError(f"a stored plain value has the unknown tag {tag!r}")


def decode_plain(value: Json, on_tag: OnTag = _refuse_tag) -> object:
    """The value that `encode_plain` was given; tags of `on_other` go to `on_tag(tag, content)`.

    Raises DamagedError for JSON that `encode_plain` does not write.
    """
    if isinstance(value, list):
        return [decode_plain(item, on_tag) for item in value]
    if not isinstance(value, dict):
        if isinstance(value, float):
            raise DamagedError("a stored plain value holds a bare JSON float")
        return value
    if len(value) != 1:
        raise DamagedError(f"a stored plain value has {len(value)} tags, not one")
    ((tag, content),) = value.items()
    if tag == "float" and isinstance(content, str):
        return _float(content)
    if tag == "tuple" and isinstance(content, list):
        return tuple(decode_plain(item, on_tag) for item in content)
    if tag == "dict" and isinstance(content, list):
        return dict(_pair(pair, on_tag) for pair in content)
    return on_tag(tag, content)


def _float(text: str) -> float:
    try:
        return float.fromhex(text)
    except (ValueError, OverflowError) as error:
        raise DamagedError(f"a stored float reads {text!r}") from error


def _pair(pair: Json, on_tag: OnTag) -> tuple[object, object]:
    if not isinstance(pair, list) or len(pair) != 2:
        raise DamagedError("a stored dict has an item that is not a pair")
    key = decode_plain(pair[0])
    if isinstance(key, list | dict):
        raise DamagedError("a stored dict has an unhashable key")
    return key, decode_plain(pair[1], on_tag)
