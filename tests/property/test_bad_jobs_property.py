"""Whatever is wrong with a job file, it is refused in one line that names the key or the file, and the remedy.

Each kind is named in `bad_jobs.py` and `bad_job_files.py`; hypothesis draws the place and the value, and here how the
text is saved and which command meets it. Through the command: exit status 2, one line, nothing made.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import bad_job_files
import pytest
from bad_jobs import MUTATIONS, SOUND, BadJob, text_of
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_tasks.cli.main import main
from openclaw_tasks.config.job import TrainJob
from openclaw_tasks.errors import UsageError

PLACES = bad_job_files.PLACES
COMMANDS = {"train": (), "verify": (), "export": ("--out", "{}/weights.safetensors")}
"""Those that take a job file, with what else they need."""

how_saved = st.sampled_from(["as it is", "with a byte order mark", "with CRLF"])


class Desk:
    """A folder of its own for each job file, and a home in which nothing may appear."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self._numbers = itertools.count()

    def folder(self) -> Path:
        folder = self.root / str(next(self._numbers))
        folder.mkdir()
        return folder

    def write(self, data: bytes) -> Path:
        path = self.folder() / "job.yaml"
        path.write_bytes(data)
        return path


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    found = Desk(tmp_path_factory.mktemp("bad-jobs"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENCLAW_HOME", str(found.home))
        patch.delenv("NO_SUCH_NAME", raising=False)
        yield found


def saved(data: bytes, how: str) -> bytes:
    """As another editor saves the same text."""
    if how == "with CRLF":
        return data.replace(b"\n", b"\r\n")
    is_text = not data.startswith((b"\xef\xbb\xbf", b"\xff", b"\xfe"))
    return b"\xef\xbb\xbf" + data if how == "with a byte order mark" and is_text else data


def refusal(path: Path) -> str:
    """The one line that refuses a job file."""
    with pytest.raises(UsageError) as caught:
        TrainJob.load(path)
    assert caught.value.exit_status == 2
    message = str(caught.value)
    assert message.isprintable(), message
    return message


def openclaw(*words: str) -> tuple[int, str, str]:
    """The command in this process: its status, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    path = list(sys.path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["openclaw", *words])
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            sys.path[:] = path
            for number, handler in handlers.items():
                signal.signal(number, handler)
    assert isinstance(ended.value.code, int)
    return ended.value.code, out.getvalue(), err.getvalue()


def refused(desk: Desk, command: str, path: Path, options: Sequence[str] = ()) -> str:
    """The one line with which a command refuses a job file, with nothing made or changed."""
    before = sorted(path.parent.rglob("*"))
    rest = [word.format(path.parent) for word in COMMANDS[command]]
    status, out, err = openclaw(command, str(path), *rest, *options)
    assert (status, out) == (2, ""), err
    (line,) = err.splitlines()
    assert line.startswith("openclaw: "), line
    assert sorted(path.parent.rglob("*")) == before
    assert not desk.home.exists()
    return line.removeprefix("openclaw: ")


def test_there_are_many_kinds() -> None:
    assert len(MUTATIONS) >= 30


@pytest.mark.parametrize("how", ["as it is", "with a byte order mark", "with CRLF"])
def test_the_sound_document_loads_however_it_is_saved(desk: Desk, how: str) -> None:
    """What the mutations start from; their refusals are for what they have changed."""
    path = desk.write(saved(text_of(SOUND).encode(), how))
    assert TrainJob.load(path).steps == SOUND["steps"]


@pytest.mark.parametrize("kind", MUTATIONS)
def test_a_wrong_job_file_is_refused_naming_key_and_remedy(desk: Desk, kind: str) -> None:
    @given(bad=MUTATIONS[kind], how=how_saved)
    @settings(max_examples=20, deadline=None)
    def check(bad: BadJob, how: str) -> None:
        path = desk.write(saved(bad.data, how) if "byte" not in kind and "large" not in kind else bad.data)
        message = refusal(path)
        assert message.startswith(str(path)), message
        for words in bad.says:
            assert words in message
        assert re.search(bad.remedy, message.split(" (and ")[0]), message
        assert "geheim" not in message

    check()


@given(data=st.data(), command=st.sampled_from(sorted(COMMANDS)), more=st.sampled_from([(), ("--json",)]))
@settings(max_examples=150, deadline=None)
def test_every_command_refuses_it_with_status_2_and_one_line(
    desk: Desk, data: st.DataObject, command: str, more: tuple[str, ...]
) -> None:
    kind = data.draw(st.sampled_from(sorted(MUTATIONS)))
    path = desk.write(data.draw(MUTATIONS[kind]).data)
    assert refused(desk, command, path, more) == refusal(path)


@pytest.mark.parametrize("kind", PLACES)
def test_what_is_no_readable_file_is_refused_naming_it(desk: Desk, kind: str) -> None:
    make, pattern = PLACES[kind]
    path = make(desk.folder())
    assert re.search(pattern, refusal(path))
    assert re.search(pattern, refused(desk, "train", path))
