"""Full disks, killed writers and rival processes, on real files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from openclaw_tasks.checkpoint import paths
from openclaw_tasks.storage.file_store import FileStore

FILL = """
import resource, sys
from openclaw_tasks.errors import StoreError
from openclaw_tasks.storage.file_store import FileStore

root, limit = sys.argv[1], int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
store = FileStore("file://" + root)
store.create("lm/base/5/params/0", b"5" * 50_000)
try:
    store.create("lm/base/10/params/0", b"x" * 400_000)
except StoreError as error:
    print(error)
print(store.list(""))
print(store.read("lm/base/5/params/0") == b"5" * 50_000)
store.create("lm/base/15/params/0", b"15")
print(sorted(path.name for path in __import__("pathlib").Path(root).rglob(".tmp-*")))
"""

RIVAL = """
import sys
from openclaw_tasks.errors import AlreadyExistsError
from openclaw_tasks.storage.file_store import FileStore

store, mine = FileStore("file://" + sys.argv[1]), sys.argv[2].encode() * 100_000
print("ready", flush=True)
for key in sys.stdin:
    try:
        store.create(key.strip(), mine)
        print("won", flush=True)
    except AlreadyExistsError:
        print("lost", flush=True)
"""

KILLED = """
import os, signal, sys
from openclaw_tasks.storage.file_store import FileStore

store = FileStore("file://" + sys.argv[1])
store.create("lm/base/5-1-w.json", b"whole")
os.link = os.rename = os.replace = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
getattr(store, sys.argv[2])(sys.argv[3], b"new" * 10_000)
"""


def run_on_small_disk(root: Path) -> str:
    """Run FILL on a 256 KiB tmpfs in a mount namespace of its own, or else under a limit on file sizes."""
    script = [sys.executable, "-c", FILL, str(root)]
    mount = 'mount -t tmpfs -o size=256k none "$0" && exec "$@" 0'
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(root), *script]
    if shutil.which("unshare"):
        done = subprocess.run(unshare, check=False, capture_output=True, text=True, timeout=60)
        if done.returncode == 0:
            return done.stdout
    return subprocess.run([*script, "100000"], capture_output=True, text=True, timeout=60, check=True).stdout


def check_full_disk_report(output: str, root: Path) -> None:
    message, keys, is_whole, temporaries = output.splitlines()
    assert message.startswith(f"cannot write {root}/lm/base/10/params/0: ")
    assert "400000 bytes" in message
    assert "are free" in message
    assert ", 0 are free" not in message
    assert keys == "['lm/base/5/params/0']"
    assert is_whole == "True"
    assert temporaries == "[]"


def test_full_disk_names_path_need_and_free_and_leaves_earlier_state(tmp_path: Path) -> None:
    """pytorch/pytorch#10577: the error names path, need and free bytes; nothing broken stays behind."""
    check_full_disk_report(run_on_small_disk(tmp_path), tmp_path)


def test_limit_on_file_sizes_is_reported_like_a_full_disk(tmp_path: Path) -> None:
    """pytorch/pytorch#10577, by RLIMIT_FSIZE; piskvorky/smart_open#684: no short object under its name."""
    script = [sys.executable, "-c", FILL, str(tmp_path), "100000"]
    output = subprocess.run(script, capture_output=True, text=True, timeout=60, check=True).stdout
    check_full_disk_report(output, tmp_path)
    assert "ulimit" in output


def test_of_two_processes_creating_one_key_one_wins_each_time(tmp_path: Path) -> None:
    """microsoft/agent-framework#7757: 50 rounds, content always one writer's."""
    rivals = [
        subprocess.Popen(
            [sys.executable, "-c", RIVAL, str(tmp_path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    try:
        pipes = [(rival.stdin, rival.stdout) for rival in rivals]
        assert all(output is not None and output.readline() == "ready\n" for _, output in pipes)
        outcomes = []
        for number in range(50):
            for stdin, _ in pipes if number % 2 else reversed(pipes):
                assert stdin is not None
                stdin.write(f"lm/log/1-w/{number}\n")
                stdin.flush()
            outcomes.append([output.readline().strip() for _, output in pipes if output is not None])
    finally:
        for rival in rivals:
            rival.communicate(timeout=30)
    for number, outcome in enumerate(outcomes):
        assert sorted(outcome) == ["lost", "won"]
        winner = b"ab"[outcome.index("won")]
        assert set((tmp_path / f"lm/log/1-w/{number}").read_bytes()) == {winner}
    assert list(tmp_path.rglob(".tmp-*")) == []


@pytest.mark.parametrize(("operation", "key"), [("create", "lm/base/10-1-w.json"), ("replace", "lm/base/10-1-w.json")])
def test_a_writer_killed_before_it_gives_the_name_leaves_nothing_under_it(
    tmp_path: Path, operation: str, key: str
) -> None:
    """Lightning-AI/pytorch-lightning#688: never half a file under a final name."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), operation, key], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    store = FileStore(f"file://{tmp_path}")
    assert store.list("") == ["lm/base/5-1-w.json"]
    assert len(list(tmp_path.rglob(".tmp-*"))) == 1
    assert store.sweep_temporaries(0.0) == 1
    store.create(key, b"again")
    assert store.read("lm/base/5-1-w.json") == b"whole"


def test_a_replace_killed_before_the_rename_keeps_the_old_content(tmp_path: Path) -> None:
    key = "lm/base/5-1-w.json"
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), "replace", key], check=False, timeout=60)
    assert FileStore(f"file://{tmp_path}").read(key) == b"whole"


def test_newest_is_told_by_numbers_not_by_text_or_file_times(tmp_path: Path) -> None:
    """Lightning-AI/litgpt#661: 960000 sorts after 1080000 as text, and copying changes file times."""
    original = FileStore(f"file://{tmp_path}/original")
    original.make_root()
    for step in (5, 10, 100, 960_000, 1_080_000):
        original.create(paths.BaseName(step, 1, "w").manifest_key("lm"), b"")
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    for age, path in enumerate(sorted((tmp_path / "copy").rglob("*.json"))):
        os.utime(path, (1e9 - age, 1e9 - age))
    copy = FileStore(f"file://{tmp_path}/copy")
    names = [paths.parse_manifest_key("lm", key) for key in copy.list("lm/base/")]
    assert max(name for name in names if name is not None).step == 1_080_000
