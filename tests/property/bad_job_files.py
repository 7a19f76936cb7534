"""More kinds of wrong job files: targets, keys that do not go together, what is no mapping in YAML, and no file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bad_jobs import SOUND, BadJob, Draw, changed, mutation, of, text_of, without
from hypothesis import assume
from hypothesis import strategies as st

MEND_IT: Final = r"; correct the YAML there"
FOLDERS: Final = st.text("abcxyz019", min_size=1, max_size=8)


def with_targets(targets: list[Any], *says: str, remedy: str, redundancy: int = 0) -> BadJob:
    store = {**SOUND["store"], "targets": targets, "redundancy": redundancy}
    return of({**SOUND, "store": store}, *says, remedy=remedy)


# Targets


@mutation
def a_target_has_an_unknown_scheme(draw: Draw) -> BadJob:
    scheme = draw(st.sampled_from(["s3", "http", "ftp", "File", "fil", "", "file:"]))
    return with_targets([f"{scheme}://h/x"], "store.targets[0]=", "unknown scheme", remedy="; (did you mean|known:) ")


@mutation
def a_target_is_no_url(draw: Draw) -> BadJob:
    text = draw(st.sampled_from(["/mnt/a", "mnt/a", "", "file:/mnt/a", "~/a"]))
    return with_targets([text], "store.targets[0]=", "is no URL", remedy="; write 'file://")


@mutation
def a_target_holds_a_password(draw: Draw) -> BadJob:
    scheme, user = draw(st.sampled_from(["s3", "file", "https"])), draw(st.sampled_from(["me:geheim", "geheim"]))
    return with_targets([f"{scheme}://{user}@h/x"], "store.targets[0]=", remedy="; take them out")


@mutation
def a_target_is_the_root(draw: Draw) -> BadJob:
    return with_targets(["file:///" + "/" * draw(st.integers(0, 3))], "store.targets[0]=", remedy="; name a folder")


@mutation
def a_target_is_no_text(draw: Draw) -> BadJob:
    place, value = draw(st.integers(0, 2)), draw(st.sampled_from([None, 1, True, ["file:///a"], {"url": "file:///a"}]))
    targets: list[Any] = ["file:///a", "file:///b"]
    targets.insert(place, value)
    return with_targets(targets, f"store.targets[{place}]=", remedy="; change it")


@mutation
def a_target_cannot_be_printed(draw: Draw) -> BadJob:
    bad = draw(st.sampled_from(["\n", "\t", "\0", "\x1b[31m", "\u202e", "\ufeff"]))
    return with_targets([f"file:///a{bad}b"], "store.targets[0]=", remedy="; remove it")


@mutation
def targets_are_one_text(draw: Draw) -> BadJob:
    value = draw(st.sampled_from(["file:///a", "", "file:///a,file:///b", 3, {"a": "file:///a"}]))
    return of(changed(("store", "targets"), value), "store.targets=", remedy="; change it, for example targets: ")


@mutation
def there_are_no_targets(draw: Draw) -> BadJob:
    return with_targets([], "store.targets=[]", remedy="; change it", redundancy=draw(st.integers(0, 3)))


@mutation
def there_are_too_many_targets(draw: Draw) -> BadJob:
    count = draw(st.integers(257, 400))
    return with_targets([f"file:///t{index}" for index in range(count)], "store.targets=", "256", remedy="; change it")


@mutation
def two_targets_are_one(draw: Draw) -> BadJob:
    names = draw(st.lists(FOLDERS, min_size=1, max_size=5, unique=True))
    again = draw(st.sampled_from(names))
    form = draw(st.sampled_from(["file:///{}", "file:////{}", "file:///{}/", "file:///x/../{}", "file:///./{}"]))
    targets = [*(f"file:///{name}" for name in names), form.format(again)]
    first = f"store.targets[{names.index(again)}]"
    return with_targets(targets, first, f"store.targets[{len(names)}]", remedy="; name a folder of its own for each")


@mutation
def a_target_lies_in_another(draw: Draw) -> BadJob:
    outer, inner = draw(FOLDERS), draw(st.lists(FOLDERS, min_size=1, max_size=3))
    targets = [f"file:///{outer}", f"file:///{outer}/{'/'.join(inner)}"]
    if draw(st.booleans()):
        targets.reverse()
    return with_targets(targets, "store.targets[0]=", "store.targets[1]=", remedy="; name folders side by side")


@mutation
def redundancy_is_too_high(draw: Draw) -> BadJob:
    count = draw(st.integers(1, 9))
    redundancy = draw(st.integers((count + 1) // 2, 127))
    targets = [f"file:///t{index}" for index in range(count)]
    remedy = f"; name at least {2 * redundancy + 1} targets, or set store.redundancy to at most {(count - 1) // 2}"
    return with_targets(
        targets, f"store.redundancy={redundancy}", f"{count} of store.targets", remedy=remedy, redundancy=redundancy
    )


# Keys that do not go together


@mutation
def the_batch_cannot_be_cut(draw: Draw) -> BadJob:
    batch = draw(st.integers(1, 10**6))
    assume(batch % SOUND["logical_shards"])
    return of(changed(("global_batch",), batch), f"global_batch={batch}", "logical_shards=8", remedy="; change either")


@mutation
def shards_are_no_power_of_two(draw: Draw) -> BadJob:
    shards = draw(st.integers(3, 65535))
    assume(shards & (shards - 1))
    below = 1 << (shards.bit_length() - 1)
    remedy = f"; choose {below} or {2 * below}"
    return of({**SOUND, "logical_shards": shards}, f"logical_shards={shards}", "power of two", remedy=remedy)


@mutation
def there_are_more_workers_than_shards(draw: Draw) -> BadJob:
    workers = draw(st.integers(9, 4096))
    document = changed(("cluster", "workers"), workers)
    return of(document, f"cluster.workers={workers}", "logical_shards=8", remedy="; change either")


@mutation
def a_segment_is_too_long(draw: Draw) -> BadJob:
    steps = draw(st.integers(26, 10**9))
    says = (f"segment_steps={steps}", "fault_tolerance.max_rollback_steps=50")
    return of({**SOUND, "segment_steps": steps}, *says, remedy="; change either")


@mutation
def a_group_is_too_long(draw: Draw) -> BadJob:
    steps = draw(st.integers(65, 10**9))
    says = (f"store.group_steps={steps}", "fault_tolerance.max_unprotected_steps=64")
    return of(changed(("store", "group_steps"), steps), *says, remedy="; change either")


# Files that hold no mapping in YAML


@mutation
def the_file_is_empty(draw: Draw) -> BadJob:
    text = draw(st.lists(st.sampled_from(["", " ", "# steps: 40", "---", "null", "~"]), max_size=1))
    lines = draw(st.lists(st.sampled_from(["", "  ", "# nothing"]), max_size=4))
    return of("\n".join(lines + text), "is empty", remedy="; a job needs at least run, recipe, steps")


@mutation
def the_file_holds_a_list(draw: Draw) -> BadJob:
    text = "".join(f"- {line}" for line in text_of(SOUND).splitlines(keepends=True)[: draw(st.integers(1, 9))])
    return of(text, "holds a list", remedy="; a job is a mapping")


@mutation
def the_file_holds_one_value(draw: Draw) -> BadJob:
    text = draw(st.sampled_from(["openclaw", "40", "1.5", "true", "'run: a'", "run:a", "run = a", "s3://b/job.yaml"]))
    return of(text, "holds the value", remedy="; a job is a mapping")


@mutation
def the_file_holds_several_documents(draw: Draw) -> BadJob:
    text = text_of(SOUND)
    return of(
        text + draw(st.sampled_from(["---\n", "...\n---\n"])) + text,
        "line ",
        "more than one document",
        remedy="; keep one of them",
    )


@mutation
def a_line_is_indented_by_a_tab(draw: Draw) -> BadJob:
    lines = text_of(SOUND).splitlines()
    at = draw(st.integers(1, len(lines) - 1))
    lines[at] = "\t" + lines[at]
    return of("\n".join(lines), "line ", remedy=MEND_IT)


@mutation
def a_quote_or_bracket_is_left_open(draw: Draw) -> BadJob:
    return of(
        without("run") + "run: " + draw(st.sampled_from(["'a", '"a', "[a", "{a: b", "[a}", "a: b"])),
        "line ",
        remedy=MEND_IT,
    )


@mutation
def a_colon_has_no_space(draw: Draw) -> BadJob:
    name = draw(st.sampled_from(sorted(SOUND)[1:]))
    return of(text_of(SOUND).replace(f"{name}: ", f"{name}:", 1), "line ", remedy=MEND_IT)


@mutation
def a_tag_asks_for_more_than_a_value(draw: Draw) -> BadJob:
    tag = draw(
        st.sampled_from(["!!python/object:os.system", "!!python/name:os.system", "!mine", "!!timestamp", "!!set"])
    )
    return of(f"{without('run')}run: {tag} x\n", "line ", "tag", "is unknown", remedy="; remove it")


@mutation
def a_tag_does_not_fit_its_value(draw: Draw) -> BadJob:
    value = draw(
        st.sampled_from(["!!int x", "!!float x", "!!bool 1", "!!null x", "!!str [a]", "!!seq {a: 1}", "!!map [a]"])
    )
    return of(f"{without('run')}run: {value}\n", "line ", remedy="; remove the tag")


@mutation
def an_alias_has_no_anchor_or_holds_itself(draw: Draw) -> BadJob:
    value = draw(st.sampled_from(["*a", "&a [*a]", "&a {x: *a}", "[*a, &a 1]"]))
    return of(f"{without('recipe_args')}recipe_args: {{x: {value}}}\n", "line ", remedy=MEND_IT)


@mutation
def what_is_merged_is_no_mapping(draw: Draw) -> BadJob:
    value = draw(st.sampled_from(["1", "[1]", "x", "[{a: 1}, 2]"]))
    return of(f"{text_of(SOUND)}<<: {value}\n", "line ", "merges no mapping", remedy="; name a mapping's anchor")


@mutation
def aliases_of_aliases_fill_the_memory(draw: Draw) -> BadJob:
    """Small as a file, gigabytes when written out: many values, one long text many times, merged keys."""
    levels = "".join(f"    a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))
    many = f"recipe_args:\n  x:\n    a0: &a0 [x, x]\n{levels}"
    thin = f"x: &x [{'1,' * 400}]\ny: &y [{'*x,' * 200}]\n" + "".join(f"z{n}: *y\n" for n in range(9))
    long = f"recipe_args:\n  x: &x {'x' * 40_000}\n  y: [{'*x,' * 2000}]\n"
    keys = f"recipe_args:\n  x: &x {{{', '.join(f'k{n}: 1' for n in range(500))}}}\n  y: [{'{<<: *x},' * 500}]\n"
    text = without("recipe_args") + draw(st.sampled_from([many, thin, long, keys]))
    return of(text, "more than", remedy="; (name a file that holds them|merge fewer)")


@mutation
def the_job_is_too_large_to_travel(draw: Draw) -> BadJob:
    document = changed(("recipe_args", "x"), "x" * draw(st.integers(100_000, 200_000)))
    return of(document, "more than 100000", remedy="; keep large values in a file and name it in recipe_args")


@mutation
def the_file_is_too_large(draw: Draw) -> BadJob:
    size = draw(st.integers(300_001, 3_000_000))
    return BadJob(text_of(SOUND).encode().ljust(size, b"#"), (f"{size} bytes",), "; a job file has at most 300000")


@mutation
def a_byte_is_not_utf8(draw: Draw) -> BadJob:
    data = bytearray(text_of(SOUND).encode())
    at, byte = draw(st.integers(0, len(data) - 1)), draw(st.sampled_from([0x80, 0xE9, 0xFC, 0xFE, 0xFF]))
    data.insert(at, byte)
    return BadJob(bytes(data), (f"byte {at} (0x{byte:02x}) is not UTF-8",), "; save it as UTF-8 text")


@mutation
def the_file_is_utf16(draw: Draw) -> BadJob:
    encoding = draw(st.sampled_from(["utf-16", "utf-32"]))
    return BadJob(text_of(SOUND).encode(encoding), ("byte 0 (0xff) is not UTF-8",), "; save it as UTF-8 text")


@mutation
def the_file_is_binary(draw: Draw) -> BadJob:
    data = draw(st.sampled_from([b"\x7fELF", b"PK\x03\x04", b"\x89PNG\r\n", b"\x1f\x8b\x08"])) + draw(
        st.binary(max_size=99)
    )
    return BadJob(data, (), "; (save it as UTF-8 text|write plain YAML text)")


@mutation
def a_character_is_no_text(draw: Draw) -> BadJob:
    at, bad = draw(st.integers(1, 50)), draw(st.sampled_from(["\0", "\x07", "\x1b", "\x7f", "\ufffe"]))
    text = text_of(SOUND)
    return of(text[:at] + bad + text[at:], remedy="; write plain YAML text")


# What is no file that can be read. Each makes something in an empty folder and returns the path to name.

PLACES: Final[dict[str, tuple[Callable[[Path], Path], str]]] = {}
"""By the name of what is wrong: how to make it, and a pattern of what is said."""


def place(pattern: str) -> Callable[[Callable[[Path], Path]], Callable[[Path], Path]]:
    def book(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
        PLACES[make.__name__] = (make, pattern)
        return make

    return book


@place(r"^JOB='.*job\.yaml' is no file; correct the path, or name a shipped job \(known: demo, tiny\)$")
def there_is_no_such_file(folder: Path) -> Path:
    return folder / "job.yaml"


@place(r"/jobs is a folder; name a job file, such as .*/jobs/job\.yaml$")
def a_folder_is_named(folder: Path) -> Path:
    (folder / "jobs").mkdir()
    return folder / "jobs"


@place(r"^JOB='.*file/job\.yaml' is no file; correct the path")
def the_folder_is_a_file(folder: Path) -> Path:
    (folder / "file").touch()
    return folder / "file" / "job.yaml"


@place(r"^JOB='.*link\.yaml' is no file; correct the path")
def a_link_leads_nowhere(folder: Path) -> Path:
    (folder / "link.yaml").symlink_to("gone.yaml")
    return folder / "link.yaml"


@place(r"link\.yaml: Too many levels of symbolic links; name a file that can be read$")
def a_link_leads_to_itself(folder: Path) -> Path:
    (folder / "link.yaml").symlink_to("link.yaml")
    return folder / "link.yaml"


@place(r"File name too long; name a file that can be read$")
def the_name_is_too_long(folder: Path) -> Path:
    return folder / ("x" * 300)


@place(r"pipe is no regular file; name a job file$")
def a_pipe_is_named(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


@place(r"zeros is no regular file; name a job file$")
def a_device_is_named(folder: Path) -> Path:
    (folder / "zeros").symlink_to("/dev/zero")
    return folder / "zeros"


@place(r"job\.yaml: (Permission denied|Input/output error); name a file that can be read$")
def the_file_cannot_be_read(folder: Path) -> Path:
    path = folder / "job.yaml"
    if os.geteuid():
        path.touch(mode=0)
    else:  # root may read every file; but not this one from its beginning
        path.symlink_to("/proc/self/mem")
    return path


@place(r"a\\nb\\x1b/job\.yaml: unknown key 'stepz' \(value 1\); did you mean 'steps'\?")
def the_folders_name_has_a_line_break(folder: Path) -> Path:
    path = folder / "a\nb\x1b" / "job.yaml"
    path.parent.mkdir()
    path.write_text(text_of({**SOUND, "stepz": 1}))
    return path


@place(r"/job\.yaml line 4, column 1: the key 'seed' is given twice; keep one of them$")
def the_folders_name_is_long(folder: Path) -> Path:
    path = folder / ("x" * 250) / ("y" * 250) / "job.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("run: a\nseed: 1\nsteps: 1\nseed: 2\n")
    return path
