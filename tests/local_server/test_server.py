"""`up` and `down`, with real servers and workers."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prefect.settings import (
    PREFECT_API_REQUEST_TIMEOUT,
    PREFECT_CLIENT_MAX_RETRIES,
    temporary_settings,
)

from prefect_bt.errors import ServerError
from prefect_bt.host.processes import ProcessIdentity, read_start_time
from prefect_bt.host.service import start_process
from prefect_bt.local_server import server
from prefect_bt.local_server.discovery import (
    get_process,
    local_server_url,
    read_server,
    server_file,
    wait_for_server_url,
    write_server,
)
from prefect_bt.local_server.password import auth_file, read_auth
from tests.forked import Forked
from tests.node_agent.rig import wait_until
from tests.ports import free_port

NOBODY = 65534


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PREFECT_BT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


def answer(url: str, auth: str = "") -> Any:
    deadline = time.monotonic() + 200
    headers = {"Authorization": f"Basic {b64encode(auth.encode()).decode()}"}
    while True:
        try:
            request = urllib.request.Request(url, headers=headers)
            with urllib.request.urlopen(request, timeout=200) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > deadline:  # its SQLite is busy
                raise
        time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.integration
def test_a_life(home: Path, monkeypatch: pytest.MonkeyPatch):
    port, told, state_dir = free_port(), [], home / "state"
    monkeypatch.setenv("PREFECT_API_URL", "http://elsewhere.example/api")
    monkeypatch.setattr(server, "start_process", never_after(port, start_process))
    first = server.up(port=port, worker=False, echo=told.append)
    try:
        assert not first["already_up"]
        url = f"http://127.0.0.1:{port}/api"
        show = f'"$(cat {state_dir}/server-auth)"'
        assert first["export"] == f"export PREFECT_API_URL={url} PREFECT_API_AUTH_STRING={show}"
        auth = read_auth(state_dir)
        assert not any(auth in line for line in told)
        assert any("elsewhere.example" in line and first["export"] in line for line in told)
        assert local_server_url(state_dir) == first["api_url"]
        # The UI is told where its data are, and not to ask anybody else.
        assert answer(f"{first['ui_url']}/ui-settings")["api_url"] == first["api_url"]
        settings = answer(f"{first['api_url']}/admin/settings", auth)
        assert settings["server"]["analytics_enabled"] is False
        assert settings["server"]["concurrency"]["lease_storage"].endswith(".filesystem")
        train = answer(f"{first['api_url']}/deployments/name/train/train", auth)
        assert train["entrypoint"] == "prefect_bt.flows.train.train"
        answer(f"{first['api_url']}/block_types/slug/prefect-bt-secrets", auth)

        auth_file(state_dir).unlink()
        again = server.up(port=free_port(), echo=told.append)
        assert again["already_up"] and again["server_pid"] == first["server_pid"]
        assert get_process(again, "worker").is_alive, "which the first `up` did not start"
        assert read_auth(state_dir) == auth
        assert any("was missing or damaged" in line for line in told)
        if os.geteuid() == 0:
            check_another_user(home, again)
        healed = mended(state_dir, again)

        refuses_while_a_run_is_going(first["api_url"])
        assert server.down(force=True, echo=told.append)["server_pid"] == healed["server_pid"]
        roles = ("server", "worker", "caretaker")
        assert not [role for role in roles if get_process(healed, role).is_alive]
        assert not server_file(state_dir).exists()
    finally:
        server.down(force=True, echo=told.append)
    assert server.down(echo=told.append) == {}
    assert told[-1].startswith("Nothing to stop")
    assert can_take(port)
    assert read_auth(state_dir) == auth


INTRUDER = """
import encodings.idna, os, sys, urllib.request, urllib.error
os.setgroups([]); os.setgid({user}); os.setuid({user})
root, url, *pids = sys.argv[1:]
for path in [f"{{root}}/state/server-auth", f"{{root}}/prefect/prefect.db",
             f"{{root}}/prefect/prefect.db-wal", *(f"/proc/{{pid}}/environ" for pid in pids)]:
    try:
        os.close(os.open(path, os.O_RDONLY))
        print("read", path)
    except OSError as error:
        print(type(error).__name__)
os.stat(root + "/state")  # so it is the files that are closed
try:
    print(urllib.request.urlopen(url + "/block_documents/filter", data=b"{{}}").status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


def check_another_user(home: Path, known: dict[str, Any]) -> None:
    """Check that another user reads nothing and is refused by the server."""
    pids = [known[f"{role}_pid"] for role in ("server", "worker", "caretaker")]
    intruder = Forked(INTRUDER.format(user=NOBODY), [home, known["api_url"], *pids])
    found, error = intruder.communicate(200)
    assert found.split() == ["PermissionError"] * 6 + ["401"], error


def never_after(port: int, start: Any) -> Any:
    """Return `start`, which checks that nobody can take the port before a server has begun."""

    def starting(*given: Any, **options: Any) -> Any:
        assert not can_take(port)
        return start(*given, **options)

    return starting


def can_take(port: int) -> bool:
    """Return whether another program can listen there, whatever options it sets."""
    with socket.socket() as imposter:
        imposter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        imposter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            imposter.bind(("127.0.0.1", port))
            imposter.listen()
        except OSError:
            return False
        return True


def mended(state_dir: Path, before: dict[str, Any]) -> dict[str, Any]:
    """Both killed: the watchdog starts both again, with what the server had stored.

    Meanwhile nobody gets its port, where clients would send the password.
    """
    port = urlsplit(before["api_url"]).port
    for role in ("worker", "server"):
        os.kill(before[f"{role}_pid"], signal.SIGKILL)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        assert not can_take(port or 0)
        now = read_server(state_dir) or {}
        replaced = all(now.get(key) != before[key] for key in ("worker_pid", "server_pid"))
        if replaced and get_process(now, "worker").is_alive and local_server_url(state_dir):
            assert now["api_url"] == before["api_url"]
            url = f"{now['api_url']}/deployments/name/train/train"
            assert answer(url, read_auth(state_dir))
            return now
        time.sleep(0.2)
    raise AssertionError((state_dir / "caretaker.log").read_text())


def refuses_while_a_run_is_going(api_url: str) -> None:
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.states import Running

    from prefect_bt.local_server.setup import use_api

    @flow
    def long() -> None: ...

    with use_api(api_url), get_client(sync_client=True) as client:
        client.create_flow_run(long, name="still-going", state=Running())

    def read_refusal() -> str:
        with pytest.raises(ServerError) as caught:
            server.down(echo=lambda _: None)
        return str(caught.value)

    wait_until(lambda: "still-going" in read_refusal())  # its SQLite may be busy


class _Busy(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_error(503)

    do_GET = do_POST


@pytest.mark.parametrize(("answers", "why"), [(True, "answers 503"), (False, "does not answer")])
def test_a_server_that_is_too_busy_to_list_its_runs_is_not_stopped(
    state_dir: Path, answers: bool, why: str
) -> None:
    with (
        HTTPServer(("127.0.0.1", 0), _Busy) as api,
        subprocess.Popen(["sleep", "3000"]) as process,
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0, PREFECT_API_REQUEST_TIMEOUT: 1.0}),
    ):
        url = f"http://127.0.0.1:{api.server_port}"
        facts = {"server_pid": process.pid, "server_started": read_start_time(process.pid)}
        write_server(state_dir, {"api_url": f"{url}/api", "ui_url": url, **facts})
        thread = threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.01})
        if answers:
            thread.start()
        with pytest.raises(ServerError, match=f"cannot be listed: the server {why}.*--force"):
            server.down(echo=lambda _: None)
        assert process.poll() is None
        if answers:
            api.shutdown()
        server.down(force=True, echo=lambda _: None)


def test_a_port_in_use(state_dir: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=f"Port {port} is taken.*--port {port + 1}"):
            server.up(port=port, echo=lambda _: None)
    assert not server_file(state_dir).exists()


def test_a_dead_server_is_forgotten_and_a_pid_of_another_process_left_alone(state_dir: Path):
    other = subprocess.Popen(["sleep", "60"])
    try:
        pids = {"server_pid": other.pid, "worker_pid": other.pid}
        starts = {"server_started": "before", "worker_started": "before"}
        write_server(state_dir, {"api_url": "http://127.0.0.1:9/api", **pids, **starts})
        told: list[str] = []
        assert server.down(echo=told.append) == {}
        assert told[0].startswith("Nothing to stop")
        assert read_server(state_dir) is None
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def start_caretaker(folder: Path) -> tuple[dict[str, Any], subprocess.Popen[bytes]]:
    """Start a process in place of a caretaker; return what is recorded of it."""
    log = folder / "log"
    caretaker, process = start_process(["sleep", "60"], log=log, environment=dict(os.environ))
    return {"caretaker_pid": caretaker.pid, "caretaker_started": caretaker.began}, process


def test_the_caretaker_of_a_missing_server_is_stopped_and_reported(state_dir: Path):
    roles, process = start_caretaker(state_dir)
    write_server(state_dir, {"api_url": "http://127.0.0.1:9/api", **roles})
    told: list[str] = []
    assert server.down(echo=told.append)["caretaker_pid"] == process.pid
    assert told == ["The Prefect server had already ended; stopped its caretaker."]
    assert process.wait(200) == -signal.SIGTERM
    assert not server_file(state_dir).exists()


@pytest.mark.parametrize("act", ["up", "down", "mend"])
def test_a_command_that_waits_for_another_reports_it(state_dir: Path, act: str):
    told: list[str] = []
    taken = socket.socket()  # what `up` would ask for: it ends there, once its turn has come
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    port = taken.getsockname()[1]
    acts = {
        "up": lambda: server.up(port=port, echo=told.append),
        "down": lambda: server.down(echo=told.append),
        "mend": lambda: server.restart_dead_processes(echo=told.append),
    }
    with (state_dir / "server.lock").open("w") as lock, ThreadPoolExecutor() as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = pool.submit(acts[act])
        while not told and not waiting.done():
            time.sleep(0.02)
        assert [line.partition(":")[0] for line in told] == ["Waiting"]
        assert not waiting.done()
        fcntl.flock(lock, fcntl.LOCK_UN)
        if act == "up":
            with pytest.raises(ServerError, match=f"Port {port} is taken"):
                waiting.result(200)
        else:
            assert not waiting.result(200)
    taken.close()


def test_a_server_that_does_not_start_leaves_nothing(state_dir: Path, monkeypatch):
    fails = lambda _, **given: start_process(["false"], **given)  # noqa: E731
    monkeypatch.setattr(server, "start_process", fails)
    with pytest.raises(ServerError, match=r"did not start.*server\.log"):
        server.up(port=free_port(), echo=lambda _: None)
    assert not server_file(state_dir).exists()


def test_a_daemon_is_stopped_politely_then_by_force(tmp_path: Path):
    stubborn = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    log, environment = tmp_path / "log", dict(os.environ)
    daemon, process = start_process(["sh", "-c", stubborn], log=log, environment=environment)
    while "ready" not in log.read_text():
        time.sleep(0.02)
    assert daemon.is_alive
    assert daemon.stop(timeout=0.2)
    assert process.wait(200) == -signal.SIGKILL
    assert not daemon.is_alive and not daemon.stop(timeout=0)


def test_a_zombie_and_no_process_are_not_alive():
    child = subprocess.Popen(["true"])
    while read_start_time(child.pid):
        time.sleep(0.02)
    assert not ProcessIdentity(child.pid, 1).is_alive
    child.wait()
    assert not ProcessIdentity(0, 0).is_alive and not ProcessIdentity(os.getpid(), 0).is_alive
    assert ProcessIdentity(os.getpid(), read_start_time(os.getpid())).is_alive


def test_a_server_that_its_caretaker_starts_again_is_waited_for(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/api"
    roles, process = start_caretaker(tmp_path)
    server = {"server_pid": os.getpid(), "server_started": read_start_time(os.getpid())}
    write_server(tmp_path, {"api_url": url, **roles, **server})
    with socket.socket() as listening, ThreadPoolExecutor() as pool:
        waiting = pool.submit(wait_for_server_url, tmp_path, timeout=60)
        time.sleep(1)
        assert not waiting.done()
        listening.bind(("127.0.0.1", urlsplit(url).port or 0))
        listening.listen()
        assert waiting.result() == url
    assert wait_for_server_url(tmp_path, timeout=0) == ""
    process.kill()
    process.wait()
    assert wait_for_server_url(tmp_path, timeout=1000) == ""
