"""The local Prefect server lives exactly as long as somebody uses it, whatever dies."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from openclaw_tasks.errors import RunError, UsageError
from openclaw_tasks.steps.prefect_address import configured_api_url
from openclaw_tasks.steps.server import ServerLease, join_server, serve

USER = """
import sys, time
from pathlib import Path
from openclaw_tasks.steps.server import join_server
lease = join_server(Path(sys.argv[1]), wait_ready=sys.argv[2] == "ready")
print(lease.api_url, flush=True)
sys.stdin.read()
lease.close()
"""

FLOW = """
import os, sys
from pathlib import Path
from openclaw_tasks.steps.server import join_server

with join_server(Path(sys.argv[1])) as lease:
    os.environ.update(lease.environment())
    from prefect import flow, get_run_logger, task
    from prefect.artifacts import create_markdown_artifact

    @task
    def double(value):
        get_run_logger().info("doubling %d", value)
        return 2 * value

    @flow(name="doubling")
    def doubling():
        create_markdown_artifact("two", key="result")
        return double(21)

    assert doubling() == 42
"""


@pytest.fixture(autouse=True)
def no_configured_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@contextmanager
def a_user(home: Path, *, ready: bool = False) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that uses the server until its standard input ends; and the address it was told."""
    command = [sys.executable, "-c", USER, str(home), "ready" if ready else "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        try:
            yield user, user.stdout.readline().strip()
        finally:
            user.kill()


def processes(home: Path) -> dict[str, int]:
    """Pids of the keeper and the server of `home`, by role; what has ended is missing."""
    found = {}
    for process in psutil.process_iter(["cmdline", "pid"]):
        for role in ("keeper", "process"):
            if any(word.endswith(f"server_{role}.py") for word in process.info["cmdline"] or []):
                try:
                    if process.cwd() == str(home.resolve() / "prefect"):
                        found[role] = process.pid
                except psutil.Error:
                    continue
    return found


def wait_until(claim: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def get(url: str, **headers: str) -> tuple[str, str]:
    """Content type and body."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:
        return answer.headers["content-type"], answer.read().decode()


def post(url: str) -> Any:
    request = urllib.request.Request(url, data=b"{}", headers={"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def is_healthy(lease: ServerLease) -> bool:
    return get(f"{lease.api_url}/health")[1] == "true"


@pytest.mark.flow
def test_a_second_user_joins_the_server_and_keeps_it_when_the_first_leaves(prepared_home: Path) -> None:
    with a_user(prepared_home, ready=True) as (first, address):
        with join_server(prepared_home) as second:
            assert second.api_url == address
            first.communicate("")
            assert first.returncode == 0
            assert is_healthy(second)
            assert set(processes(prepared_home)) == {"keeper", "process"}
        assert "process" not in processes(prepared_home)
        wait_until(lambda: processes(prepared_home) == {})
        with pytest.raises(urllib.error.URLError):
            get(f"{address}/health")


def test_users_that_start_at_the_same_time_get_one_server(tmp_path: Path) -> None:
    """pytorch/pytorch#91940: several runs start on one host at once."""
    command = [sys.executable, "-c", USER, str(tmp_path), "-"]
    pipe = subprocess.PIPE
    users = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(4)]
    try:
        addresses = {user.stdout.readline() for user in users if user.stdout is not None}
        assert len(addresses) == 1
        assert addresses != {""}
    finally:
        for user in users:
            user.communicate("")
    assert [user.returncode for user in users] == [0, 0, 0, 0]


def test_servers_of_different_homes_live_side_by_side(tmp_path: Path) -> None:
    """pytorch/pytorch#91940: each port is bound by the process that keeps it."""
    with (
        join_server(tmp_path / "a", wait_ready=False) as a,
        join_server(tmp_path / "b", wait_ready=False) as b,
    ):
        assert a.api_url != b.api_url


@pytest.mark.flow
def test_a_killed_user_leaves_no_server(prepared_home: Path) -> None:
    with a_user(prepared_home, ready=True) as (user, _):
        pids = processes(prepared_home)
        assert set(pids) == {"keeper", "process"}
        user.kill()
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids.values()))


def test_a_user_killed_while_the_server_starts_leaves_no_server(tmp_path: Path) -> None:
    with a_user(tmp_path) as (user, _):
        pids = processes(tmp_path)
        user.kill()
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids.values()))


@pytest.mark.flow
def test_a_killed_keeper_takes_the_server_with_it_and_the_next_user_starts_another(
    prepared_home: Path,
) -> None:
    lease = join_server(prepared_home)
    pids = processes(prepared_home)
    os.kill(pids["keeper"], signal.SIGKILL)
    wait_until(lambda: processes(prepared_home) == {})
    lease.close()
    with join_server(prepared_home) as next_lease:
        assert is_healthy(next_lease)
        assert not set(pids.values()) & set(processes(prepared_home).values())


@pytest.mark.flow
def test_a_killed_server_is_replaced_under_the_same_address(prepared_home: Path) -> None:
    with join_server(prepared_home) as lease:
        killed = processes(prepared_home)["process"]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: processes(prepared_home).get("process", killed) != killed)
        assert is_healthy(lease)  # asked while it starts: the request waits


def test_a_terminated_keeper_ends_its_server(tmp_path: Path) -> None:
    with join_server(tmp_path, wait_ready=False) as lease:
        os.kill(processes(tmp_path)["keeper"], signal.SIGTERM)
        wait_until(lambda: processes(tmp_path) == {})
        with pytest.raises(RunError, match="did not start"):
            lease.wait_ready()


def test_stale_files_are_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / "prefect"
    folder.mkdir()
    (folder / "keeper.lock").write_text("pid 1 on elsewhere\n")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(folder / "keeper.sock"))
    with join_server(tmp_path, wait_ready=False):
        assert set(processes(tmp_path)) == {"keeper", "process"}
        assert (folder / "keeper.sock").stat().st_mode & 0o777 == 0o600


def test_a_home_with_a_long_path_works(tmp_path: Path) -> None:
    home = tmp_path / ("deep" * 20) / ("deeper" * 20)
    with join_server(home, wait_ready=False), a_user(home) as (_, address):
        assert address.startswith("http://127.0.0.1:")


def test_a_lock_held_by_something_that_does_not_answer_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "prefect"
    folder.mkdir()
    with (folder / "keeper.lock").open("w") as lock:
        lock.write("pid 4711 on a-host\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="held by pid 4711 on a-host"):
            join_server(tmp_path, deadline_seconds=0.2)


def test_a_home_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="OPENCLAW_HOME"):
        join_server(tmp_path / "file")


@pytest.mark.flow
def test_a_server_that_cannot_start_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    folder = tmp_path / "prefect"
    folder.mkdir()
    (folder / "server.db").write_bytes(b"this is no database" * 1000)
    with pytest.raises(RunError, match=r"ended while starting.*server\.log, which ends: .*"):
        join_server(tmp_path)
    wait_until(lambda: processes(tmp_path) == {})


@pytest.mark.flow
def test_a_flow_runs_against_the_server_and_its_pages_are_served(prepared_home: Path) -> None:
    with join_server(prepared_home) as lease:
        subprocess.run([sys.executable, "-c", FLOW, str(prepared_home)], check=True, timeout=60)

        (run,) = post(f"{lease.api_url}/flow_runs/filter")
        assert run["state_type"] == "COMPLETED"
        wait_until(lambda: [task["state_type"] for task in post(f"{lease.api_url}/task_runs/filter")] == ["COMPLETED"])
        messages = [line["message"] for line in post(f"{lease.api_url}/logs/filter")]
        assert "doubling 21" in messages
        assert [artifact["key"] for artifact in post(f"{lease.api_url}/artifacts/filter")] == ["result"]

        kind, page = get(lease.ui_url, accept="text/html")
        assert kind.startswith("text/html")
        assert "<script" in page
        # Relative: the page asks the server that it came from, not port 4200.
        assert json.loads(get(f"{lease.ui_url}/ui-settings")[1])["api_url"] == "/api"


@pytest.mark.flow
def test_the_ui_is_served_until_it_is_interrupted(prepared_home: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from openclaw_tasks.steps.server import serve;"
        "serve(Path(sys.argv[1]), lambda url: print(url, flush=True))"
    )
    command = [sys.executable, "-c", code, str(prepared_home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ui:
        assert ui.stdout is not None
        assert "<script" in get(ui.stdout.readline().strip(), accept="text/html")[1]
        ui.send_signal(signal.SIGINT)
        assert ui.wait(20) == 0
    wait_until(lambda: processes(prepared_home) == {})


def test_a_server_that_the_user_has_configured_is_used_and_none_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    told: list[str] = []
    serve(tmp_path / "home", told.append)
    with join_server(tmp_path / "home") as lease:
        assert lease.environment()["PREFECT_API_URL"] == "http://127.0.0.1:9/api"
        assert "PREFECT_HOME" not in lease.environment()
        assert not lease.is_ours
    assert told == ["http://127.0.0.1:9"]
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("place", ["profile", "named profile", ".env", "prefect.toml", "pyproject.toml"])
def test_a_configured_address_is_found_where_prefect_finds_it(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "http://prefect.example:4200/api"
    contents = {
        "profile": f'active = "mine"\n[profiles.mine]\nPREFECT_API_URL = "{address}"\n',
        "named profile": f'[profiles.other]\n[profiles.mine]\nPREFECT_API_URL = "{address}"\n',
        ".env": f'# ours\nexport PREFECT_API_URL="{address}"\n',
        "prefect.toml": f'[api]\nurl = "{address}"\n',
        "pyproject.toml": f'[tool.prefect.api]\nurl = "{address}"\n',
    }
    file = tmp_path / (".prefect/profiles.toml" if "profile" in place else place)
    file.parent.mkdir(exist_ok=True)
    file.write_text(contents[place])
    if place == "named profile":
        assert configured_api_url() is None
        monkeypatch.setenv("PREFECT_PROFILE", "mine")
    assert configured_api_url() == address


def test_a_profile_without_an_address_means_a_server_of_ours_and_still_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = tmp_path / ".prefect" / "profiles.toml"
    profiles.parent.mkdir()
    profiles.write_text('active = "quiet"\n[profiles.quiet]\nPREFECT_LOGGING_LEVEL = "ERROR"\n')
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "intranet.example")
    assert configured_api_url() is None
    with join_server(tmp_path / "home", wait_ready=False) as lease:
        variables = lease.environment()
    assert variables["PREFECT_PROFILES_PATH"] == str(profiles)
    assert variables["PREFECT_HOME"] == str(tmp_path / "home" / "prefect")
    assert variables["no_proxy"] == "intranet.example,127.0.0.1,localhost"
