"""Kinds of wrong job files: each a mutation of a sound one, with what the one line that refuses it must say."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import assume
from hypothesis import strategies as st

Key = tuple[str, ...]
Draw = st.DrawFn

SOUND: Final[dict[str, Any]] = {
    "run": "a-run",
    "recipe": "m.n:C",
    "recipe_args": {"width": 8, "data": "x/*.txt"},
    "seed": 1,
    "steps": 40,
    "segment_steps": 10,
    "global_batch": 64,
    "logical_shards": 8,
    "threads_per_rank": 1,
    "clip_norm": 1.0,
    "codec": "bf16",
    "cluster": {"workers": 2, "host": "127.0.0.1", "address": "tcp://h:8786"},
    "store": {
        "targets": ["file://a", "file://b", "file://c"],
        "redundancy": 1,
        "group_steps": 8,
        "deadline": "10s",
    },
    "fault_tolerance": {
        "max_rollback_steps": 50,
        "max_unprotected_steps": 64,
        "max_unprotected_bytes": "1GB",
        "max_retries": 3,
        "lease": 10,
        "max_skipped_steps": 10,
    },
}
REQUIRED: Final = ("run", "recipe", "steps", "global_batch")
SECTIONS: Final = ("cluster", "store", "fault_tolerance")
DURATIONS: Final[list[Key]] = [("store", "deadline"), ("fault_tolerance", "lease")]
SIZES: Final[list[Key]] = [("fault_tolerance", "max_unprotected_bytes")]
FROM_ZERO: Final[list[Key]] = [("seed",), ("store", "redundancy"), ("fault_tolerance", "max_retries")]
COUNTS: Final[list[Key]] = [
    *((name,) for name in ("steps", "segment_steps", "global_batch", "logical_shards", "threads_per_rank")),
    ("cluster", "workers"),
    ("store", "group_steps"),
    *(("fault_tolerance", name) for name in ("max_rollback_steps", "max_unprotected_steps", "max_skipped_steps")),
]
INTEGERS: Final = COUNTS + FROM_ZERO
TEXTS: Final[list[Key]] = [("run",), ("recipe",), ("codec",), ("cluster", "host"), ("cluster", "address")]
KEYS: Final[list[Key]] = [(name,) for name in SOUND if name not in SECTIONS] + [
    (section, name) for section in SECTIONS for name in SOUND[section]
]
"""All but the sections themselves."""
NULLABLE: Final[list[Key]] = [("clip_norm",), ("cluster", "address")]

CHANGE_IT: Final = r"; change it(, for example {}: .+)?$"
SPELL_IT: Final = r"; (did you mean '\w+'\?|known: \w+)"


@dataclass(frozen=True, slots=True)
class BadJob:
    """A job file's bytes; `says` stands in the line that refuses it, and `remedy` (a pattern) is found in it."""

    data: bytes
    says: tuple[str, ...]
    remedy: str


MUTATIONS: Final[dict[str, st.SearchStrategy[BadJob]]] = {}
"""By the name of what is wrong."""


def mutation(make: Callable[[Draw], BadJob]) -> Callable[[Draw], BadJob]:
    MUTATIONS[make.__name__] = st.composite(make)()
    return make


def flow(value: Any) -> str:
    """`value` on one line of YAML, all text in quotes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow(name)}: {flow(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else f"{'-' * (value < 0)}.inf"
    return json.dumps(value)


def text_of(document: Mapping[str, Any]) -> str:
    return "".join(f"{name if name.isidentifier() else flow(name)}: {flow(item)}\n" for name, item in document.items())


def changed(key: Key, value: Any) -> dict[str, Any]:
    """The sound document with `value` at `key`."""
    document = copy.deepcopy(SOUND)
    section = document
    for name in key[:-1]:
        section = section[name]
    section[key[-1]] = value
    return document


def without(name: str) -> str:
    """The sound document's text, but for one key."""
    return text_of({key: value for key, value in SOUND.items() if key != name})


def dotted(key: Key) -> str:
    return ".".join(key)


def wrong_value(key: Key, value: Any, remedy: str | None = None, says: tuple[str, ...] = ()) -> BadJob:
    default = CHANGE_IT.format(re.escape(key[-1]))
    return BadJob(text_of(changed(key, value)).encode(), (f"{dotted(key)}=", *says), remedy or default)


def of(document: Mapping[str, Any] | str, *says: str, remedy: str) -> BadJob:
    text = document if isinstance(document, str) else text_of(document)
    return BadJob(text.encode(), says, remedy)


def drawn(draw: Draw, choices: list[Key]) -> Key:
    return draw(st.sampled_from(choices))


# Keys


@mutation
def a_key_is_misspelt(draw: Draw) -> BadJob:
    key = drawn(draw, KEYS)
    name = key[-1]
    at = draw(st.integers(0, len(name) - 1))
    left_out, doubled = name[:at] + name[at + 1 :], name[: at + 1] + name[at:]
    wrong = draw(st.sampled_from([left_out, doubled, f"{name}s", f"x{name}"]))
    document = changed(key, None)
    section = document if len(key) == 1 else document[key[0]]
    del section[name]
    assume(wrong and wrong not in section and wrong != name)
    section[wrong] = 1
    return of(document, "unknown key", repr(wrong), remedy=SPELL_IT)


@mutation
def a_key_stands_in_the_wrong_section(draw: Draw) -> BadJob:
    key = drawn(draw, [key for key in KEYS if len(key) == 2])
    other = draw(st.sampled_from([name for name in SECTIONS if name != key[0]]))
    return of(changed((other, key[1]), 1), f"unknown key {key[1]!r} in {other}", remedy=SPELL_IT)


@mutation
def a_section_stands_in_itself(draw: Draw) -> BadJob:
    section = draw(st.sampled_from(SECTIONS))
    wrong = changed((section, section), SOUND[section])
    return of(wrong, f"unknown key {section!r} in {section}", remedy=SPELL_IT)


@mutation
def a_key_is_missing(draw: Draw) -> BadJob:
    name = draw(st.sampled_from(REQUIRED))
    return of(without(name), f"the key {name} is missing", remedy=f"; add it, for example {name}: ")


@mutation
def a_key_is_given_twice(draw: Draw) -> BadJob:
    name = draw(st.sampled_from(sorted(SOUND)))
    again = text_of({name: SOUND[name]})
    return of(text_of(SOUND) + again, "line ", f"the key {name!r} is given twice", remedy="; keep one of them")


@mutation
def a_key_of_a_section_is_given_twice(draw: Draw) -> BadJob:
    section, name = drawn(draw, [key for key in KEYS if len(key) == 2])
    line = f"{section}: {{{name}: 1, {name}: 2}}\n"
    return of(without(section) + line, "line ", f"the key {name!r} is given twice", remedy="; keep one of them")


@mutation
def a_key_is_no_text(draw: Draw) -> BadJob:
    key = draw(st.sampled_from(["1", "1.5", "true", "null", "[a]", "{a: 1}", ".nan"]))
    return of(text_of(SOUND) + f"? {key}\n: 1\n", "line ", "is not text", remedy="; write it in quotes")


@mutation
def the_folder_is_given(draw: Draw) -> BadJob:
    return of({**SOUND, "folder": draw(st.sampled_from(["/x", "", None, 1]))}, "'folder'", remedy="; remove it")


# Types and ranges


@mutation
def a_number_is_text(draw: Draw) -> BadJob:
    return wrong_value(drawn(draw, [*INTEGERS, ("clip_norm",)]), draw(st.sampled_from(["40", "many", "", "1 000"])))


@mutation
def a_text_is_a_number(draw: Draw) -> BadJob:
    return wrong_value(drawn(draw, TEXTS), draw(st.integers(-9, 9) | st.floats(-9, 9)))


@mutation
def a_number_is_true_or_false(draw: Draw) -> BadJob:
    key = drawn(draw, [*INTEGERS, ("clip_norm",), *DURATIONS, *SIZES])
    return wrong_value(key, draw(st.booleans()), rf"{CHANGE_IT.format(key[-1])}|; write (seconds|bytes) ")


@mutation
def a_whole_number_is_a_fraction(draw: Draw) -> BadJob:
    return wrong_value(drawn(draw, INTEGERS), draw(st.integers(0, 99)) + draw(st.sampled_from([0.0, 0.5, 0.25])))


@mutation
def a_count_is_negative(draw: Draw) -> BadJob:
    value = draw(st.integers(max_value=-1, min_value=-(10**40)))
    return wrong_value(drawn(draw, [*INTEGERS, ("clip_norm",)]), value)


@mutation
def a_count_is_zero(draw: Draw) -> BadJob:
    return wrong_value(drawn(draw, [*COUNTS, ("clip_norm",)]), 0)


@mutation
def a_count_is_huge(draw: Draw) -> BadJob:
    return wrong_value(drawn(draw, INTEGERS), draw(st.integers(2**63, 10**60)))


@mutation
def a_number_has_thousands_of_digits(draw: Draw) -> BadJob:
    digits = draw(st.integers(65, 6000))
    text = text_of(changed(drawn(draw, [("steps",), ("seed",)]), 0)).replace(": 0\n", f": {'9' * digits}\n")
    return of(text, "line ", f"an integer of {digits} digits", remedy="; write a smaller number")


@mutation
def a_number_is_not_finite(draw: Draw) -> BadJob:
    key = drawn(draw, [*INTEGERS, ("clip_norm",), *DURATIONS, *SIZES])
    value = draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    return wrong_value(key, value, rf"{CHANGE_IT.format(key[-1])}|; write (seconds|bytes) ")


@mutation
def a_value_is_null(draw: Draw) -> BadJob:
    key = drawn(draw, [key for key in KEYS if key not in NULLABLE] + [(section,) for section in SECTIONS])
    return wrong_value(key, None, rf"{CHANGE_IT.format(key[-1])}|; write (seconds|bytes) ")


@mutation
def a_value_is_a_list(draw: Draw) -> BadJob:
    key = drawn(draw, [key for key in KEYS if key != ("store", "targets")] + [(section,) for section in SECTIONS])
    value = draw(st.lists(st.integers() | st.text(st.characters(codec="ascii", exclude_characters="$~")), max_size=3))
    return wrong_value(key, value, rf"{CHANGE_IT.format(key[-1])}|; write (seconds|bytes) ")


@mutation
def a_value_is_a_mapping(draw: Draw) -> BadJob:
    key = drawn(draw, [key for key in KEYS if key != ("recipe_args",)])
    return wrong_value(key, {"value": 1}, rf"{CHANGE_IT.format(key[-1])}|; write (seconds|bytes) ")


@mutation
def a_section_is_one_value(draw: Draw) -> BadJob:
    key = drawn(draw, [(section,) for section in (*SECTIONS, "recipe_args")])
    return wrong_value(key, draw(st.sampled_from(["", "x", 0, 1.5, True])), says=("mapping",))


# Values with a form of their own


@mutation
def the_codec_is_unknown(draw: Draw) -> BadJob:
    name = draw(st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=9))
    assume(name not in ("bf16", "exact", "int8"))
    return wrong_value(("codec",), name, says=("'bf16'", "'exact'", "'int8'"))


@mutation
def the_runs_name_is_no_name(draw: Draw) -> BadJob:
    good = draw(st.text("abz09", min_size=1, max_size=9))
    bad = ("/", "..", "../x", f"{good}/{good}", f"/{good}", f"{good}\\", f"{good} x", f".{good}", f"-{good}", "")
    odd = (f"{good}\n", f"{good}\0", f"{good}ü", f"{good}\u202e", "名", f"{good}:1", "x" * 101, good * 101)
    return wrong_value(("run",), draw(st.sampled_from(bad + odd)))


@mutation
def the_recipe_is_no_path_to_a_class(draw: Draw) -> BadJob:
    bad = ("", "m", "m.n.C", ":C", "m:", "m:C:D", "m/n.py:C", "m.py C", "m..n:C", ".m:C", "1m:C", "m:C()", "m-n:C")
    return wrong_value(("recipe",), draw(st.sampled_from(bad)))


@mutation
def a_duration_is_none(draw: Draw) -> BadJob:
    number, unit = draw(st.integers(0, 99)), draw(st.sampled_from(["parsec", "S", "months", "e3s", "ss", "s 5ms", "µ"]))
    value = draw(st.sampled_from(["soon", "", "s", "-5s", "+5s", "1,5s", "٣s", "99999d", -1, -0.5, f"{number}{unit}"]))
    return wrong_value(drawn(draw, DURATIONS), value, "; write (seconds as a number|a duration that can end)")


@mutation
def a_size_is_none(draw: Draw) -> BadJob:
    number, unit = draw(st.integers(1, 99)), draw(st.sampled_from(["trucks", "GBs", "Gb/s", "MBps", "%", "e9", "G B"]))
    value = draw(st.sampled_from(["", "GB", "-1GB", "0.3B", "1..5GB", 0.5, -1, "99999999TB", f"{number}{unit}"]))
    return wrong_value(drawn(draw, SIZES), value, "; write bytes as a whole number")


@mutation
def a_duration_or_size_is_zero(draw: Draw) -> BadJob:
    return wrong_value(drawn(draw, DURATIONS + SIZES), draw(st.sampled_from([0, 0.0, "0"])))


@mutation
def the_schedulers_address_is_none(draw: Draw) -> BadJob:
    port = draw(st.integers(65536, 99999) | st.just(0))
    addresses = ("h", "tcp://h", "http://h:1", "tcp://h:x", "tcp://h:123456", "h:1/x", "h :1", f"h:{port}")
    remedy = f"{CHANGE_IT.format('address')}|; name one from 1 to 65535"
    return wrong_value(("cluster", "address"), draw(st.sampled_from(addresses)), remedy)


@mutation
def the_host_is_none(draw: Draw) -> BadJob:
    return wrong_value(("cluster", "host"), draw(st.sampled_from(["", "a b", "a/b", "tcp://h", "ü", "h\n", "x" * 254])))


@mutation
def an_argument_has_no_parameters_name(draw: Draw) -> BadJob:
    name = draw(st.sampled_from(["a-b", "1a", "", "a b", "class", "a.b"]))
    return of(changed(("recipe_args", name), 1), "recipe_args", repr(name), remedy="; name a parameter of the recipe")


@mutation
def an_argument_is_no_plain_value(draw: Draw) -> BadJob:
    value = draw(st.sampled_from([math.nan, math.inf, 2**63, -(2**63) - 1, "\ud800"]))
    return of(changed(("recipe_args", "x"), [value]), "recipe_args.x[0]=", remedy="; write ")


@mutation
def a_value_is_nested_too_deeply(draw: Draw) -> BadJob:
    depth, key = draw(st.integers(66, 1000)), draw(st.sampled_from(["recipe_args", "run", "x"]))
    text = f"{without(key)}{key}: {'[' * depth}{']' * depth}\n"
    return of(text, "nested", remedy="; (flatten it|write at most)")


@mutation
def a_variable_is_not_defined(draw: Draw) -> BadJob:
    key = drawn(draw, [*TEXTS, *DURATIONS, ("recipe_args", "data")])
    text = draw(st.sampled_from(["$NO_SUCH_NAME", "a${NO_SUCH_NAME}b", "${NO_SUCH_NAME}"]))
    return of(
        changed(key, text), f"{dotted(key)}: ", "'NO_SUCH_NAME'", remedy="; define it, or write \\$\\$ for a dollar"
    )


@mutation
def a_home_is_unknown(draw: Draw) -> BadJob:
    key = drawn(draw, [("recipe_args", "data"), ("recipe_args", "cache_dir")])
    return wrong_value(key, draw(st.sampled_from(["~no-such-user", "~no-such-user/x"])), r"; write \./ before a name")
