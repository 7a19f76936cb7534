"""YAML text to plain values: the core schema of YAML 1.2, read strictly.

Differs from `yaml.safe_load` where that surprises or loses something: a key given twice is refused; `no`,
`on`, `10:30` and `2026-01-01` are text, `1e-3` is a number and `010` is ten; keys are text; no tag makes
anything but plain values. Anchors, aliases and `<<` work; a value that contains itself is refused.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

from openclaw_tasks.config.text import one_line, show
from openclaw_tasks.errors import JobError

_NULL: Final = "tag:yaml.org,2002:null"
_BOOL: Final = "tag:yaml.org,2002:bool"
_INT: Final = "tag:yaml.org,2002:int"
_FLOAT: Final = "tag:yaml.org,2002:float"
_STR: Final = "tag:yaml.org,2002:str"
_SEQ: Final = "tag:yaml.org,2002:seq"
_MAP: Final = "tag:yaml.org,2002:map"
_MERGE: Final = "tag:yaml.org,2002:merge"

_PATTERNS: Final = {
    _NULL: (re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""]),
    _BOOL: (re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF")),
    _INT: (re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", re.ASCII), list("-+0123456789")),
    _FLOAT: (
        re.compile(
            r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
            re.ASCII,
        ),
        list("-+0123456789."),
    ),
    _MERGE: (re.compile(r"<<"), ["<"]),
}
_MAX_INTEGER_CHARACTERS: Final = 64
_MAX_MERGED_KEYS: Final = 10_000


def parse_yaml(text: str, source: str) -> Any:
    """The plain value that `text` holds. Raises JobError naming `source`, the place and the remedy."""
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise JobError(f"{source}{place}: {_problem(error)}") from None
    except yaml.YAMLError as error:
        raise JobError(f"{source}: {one_line(str(error).split(chr(10), 1)[0])}; write plain YAML text") from None
    except (
        ValueError,
        OverflowError,
    ) as error:  # PyYAML lets some impossible escapes through to chr() and int()
        raise JobError(f"{source}: {one_line(str(error))}; write plain YAML text") from None
    except RecursionError:
        raise JobError(f"{source}: nested too deeply; write at most some dozens of levels") from None


def _problem(error: yaml.MarkedYAMLError) -> str:
    """What is wrong, and the remedy."""
    if "single document" in (error.context or ""):
        return "more than one document; keep one of them"
    problem = one_line(error.problem or "not YAML")
    if isinstance(error, _RefusedError):
        return f"{problem}; {error.remedy}"
    return f"{problem}; correct the YAML there (a missing quote, bracket, colon or indent?)"


class _RefusedError(yaml.constructor.ConstructorError):
    """Sound YAML that a job file may not hold."""

    def __init__(self, problem: str, mark: yaml.Mark | None, remedy: str) -> None:
        super().__init__(None, None, problem, mark)
        self.remedy = remedy


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's parser with this module's resolvers and constructors in place of its YAML 1.1 ones.

    All constructors are deep: so PyYAML itself refuses a value that contains itself.
    """

    num_merged_keys = 0


def _construct_null(loader: _StrictLoader, node: yaml.Node) -> None:
    _matched(loader, node, _NULL)


def _construct_bool(loader: _StrictLoader, node: yaml.Node) -> bool:
    return _matched(loader, node, _BOOL).lower() == "true"


def _construct_int(loader: _StrictLoader, node: yaml.Node) -> int:
    text = _matched(loader, node, _INT)
    if len(text) > _MAX_INTEGER_CHARACTERS:
        raise _RefusedError(f"an integer of {len(text)} digits", node.start_mark, "write a smaller number")
    return int(text, 10) if text[:2] not in ("0o", "0x") else int(text, 0)


def _construct_float(loader: _StrictLoader, node: yaml.Node) -> float:
    text = _matched(loader, node, _FLOAT)
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


def _construct_str(loader: _StrictLoader, node: yaml.Node) -> str:
    return _scalar(loader, node)


def _construct_seq(loader: _StrictLoader, node: yaml.Node) -> list[Any]:
    if not isinstance(node, yaml.SequenceNode):
        raise _RefusedError("not a list", node.start_mark, "remove the tag, or write [a, b]")
    return loader.construct_sequence(node, deep=True)


def _construct_map(loader: _StrictLoader, node: yaml.Node) -> dict[str, Any]:
    if not isinstance(node, yaml.MappingNode):
        raise _RefusedError("not a mapping", node.start_mark, "remove the tag, or write {key: value}")
    merged: dict[str, Any] = {}
    given: dict[str, Any] = {}
    for key_node, value_node in node.value:
        value = loader.construct_object(value_node, deep=True)
        if key_node.tag == _MERGE:
            merged = {**_merge_sources(loader, value, value_node), **merged}
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise _RefusedError(f"the key {show(key)} is not text", key_node.start_mark, "write it in quotes")
        if key in given:
            raise _RefusedError(f"the key {show(key)} is given twice", key_node.start_mark, "keep one of them")
        given[key] = value
    return {**merged, **given}


def _merge_sources(loader: _StrictLoader, value: Any, node: yaml.Node) -> dict[str, Any]:
    sources = value if isinstance(value, list) else [value]
    merged: dict[str, Any] = {}
    for source in sources:
        if not isinstance(source, dict):
            raise _RefusedError("'<<' merges no mapping", node.start_mark, "name a mapping's anchor after it")
        loader.num_merged_keys += len(source)
        if loader.num_merged_keys > _MAX_MERGED_KEYS:
            raise _RefusedError(f"'<<' merges more than {_MAX_MERGED_KEYS} keys", node.start_mark, "merge fewer")
        merged = {**source, **merged}
    return merged


def _construct_unknown(loader: _StrictLoader, node: yaml.Node) -> Any:
    raise _RefusedError(f"the tag {show(node.tag)} is unknown", node.start_mark, "remove it: values are plain")


def _scalar(loader: _StrictLoader, node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise _RefusedError("not a single value", node.start_mark, "remove the tag")
    return str(loader.construct_scalar(node))


def _matched(loader: _StrictLoader, node: yaml.Node, tag: str) -> str:
    text = _scalar(loader, node)
    if not _PATTERNS[tag][0].fullmatch(text):
        kind = tag.rsplit(":", 1)[-1]
        raise _RefusedError(f"{show(text)} is not of the tag {kind!r}", node.start_mark, "remove the tag")
    return text


_StrictLoader.yaml_constructors = {
    _NULL: _construct_null,
    _BOOL: _construct_bool,
    _INT: _construct_int,
    _FLOAT: _construct_float,
    _STR: _construct_str,
    _MERGE: _construct_str,
    _SEQ: _construct_seq,
    _MAP: _construct_map,
    None: _construct_unknown,
}
_StrictLoader.yaml_multi_constructors = {}
_StrictLoader.yaml_implicit_resolvers = {}
for _tag, (_pattern, _first) in _PATTERNS.items():
    # The resolver uses match(), which accepts a prefix: anchor the pattern's end.
    _StrictLoader.add_implicit_resolver(_tag, re.compile(f"(?:{_pattern.pattern})\\Z", re.ASCII), _first)
