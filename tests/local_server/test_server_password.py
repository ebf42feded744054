"""Access to the server of `up`: requests without its password, and clients that find it."""

import json
import os
import socket
import stat
from base64 import b64encode
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import pytest
from prefect.blocks.system import Secret
from prefect.client.orchestration import get_client
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from prefect_bt.local_server import server
from prefect_bt.local_server.discovery import read_server
from prefect_bt.local_server.password import CLIENT_VARIABLE, auth_file, read_auth
from prefect_bt.local_server.setup import DEPLOYMENT
from tests.e2e.conftest import CLIENT, Machine, call
from tests.ports import free_port
from tests.prefect_server import PrefectServer

pytest_plugins = ["tests.prefect_server"]

PREFECT = [Subprotocol("prefect")]


def basic(auth: str) -> dict[str, str]:
    return {"Authorization": f"Basic {b64encode(auth.encode()).decode()}"}


# --- requests ---------------------------------------------------------------------------------


@pytest.fixture
def deployment(prefect_api: str) -> str:
    with get_client(sync_client=True) as client:
        return str(client.read_deployment_by_name(DEPLOYMENT).id)


@pytest.mark.integration
@pytest.mark.parametrize("auth", ["", "prefect-bt:", "admin:pass", "prefect-bt:guessed"])
def test_without_the_password_nothing_is_read_and_no_run_is_made(
    prefect_server: PrefectServer, prefect_api: str, deployment: str, auth: str
) -> None:
    secret = f"planted-{uuid4().hex}"
    document = Secret.model_validate({"value": secret}).save(f"planted-{uuid4().hex}")
    headers = basic(auth) if auth else {}
    mark = f"unasked-{uuid4().hex}"
    run = {"name": mark, "parameters": {"definition": {}}}
    asked = [
        CLIENT.get(
            f"{prefect_api}/block_documents/{document}?include_secrets=true", headers=headers
        ),
        CLIENT.post(
            f"{prefect_api}/block_documents/filter", json={"include_secrets": True}, headers=headers
        ),
        CLIENT.post(
            f"{prefect_api}/deployments/{deployment}/create_flow_run", json=run, headers=headers
        ),
        CLIENT.get(f"{prefect_api}/admin/settings", headers=headers),
    ]
    assert [answer.status_code for answer in asked] == [401] * len(asked)
    assert not any(secret in answer.text for answer in asked)
    named = {"flow_runs": {"name": {"any_": [mark]}}}
    found = CLIENT.post(
        f"{prefect_api}/flow_runs/filter", json=named, headers=basic(prefect_server.auth)
    )
    assert found.json() == []
    # Who checks whether it lives needs none.
    assert CLIENT.get(f"{prefect_api}/health").text == "true"


@pytest.mark.integration
@pytest.mark.parametrize(
    "host",
    ["evil.test", "127.0.0.1.evil.test:{port}", "localhost.evil.test", "127.0.0.2:{port}",
     "0.0.0.0", "evil.test@127.0.0.1", "[::1].evil.test", "127.0.0.1:x", "localhost.:{port}", ""],
)  # fmt: skip
def test_a_foreign_host_is_always_refused(prefect_server: PrefectServer, host: str) -> None:
    url = httpx.URL(prefect_server.api_url)
    for headers in ({}, basic(prefect_server.auth)):
        for path in ("/api/admin/version", "/api/health", "/ui-settings", "/"):
            named = {**headers, "Host": host.format(port=url.port)}
            assert CLIENT.get(url.copy_with(path=path), headers=named).status_code == 421


@pytest.mark.integration
@pytest.mark.parametrize(
    "host", ["127.0.0.1:{port}", "localhost:{port}", "[::1]:{port}", "LocalHost"]
)
def test_its_own_names_are_answered(prefect_server: PrefectServer, host: str) -> None:
    url = httpx.URL(prefect_server.api_url)
    named = {"Host": host.format(port=url.port)}
    for auth, status in (("", 401), (prefect_server.auth, 200)):
        headers = {**named, **(basic(auth) if auth else {})}
        assert CLIENT.get(f"{url}/admin/version", headers=headers).status_code == status


@pytest.mark.integration
@pytest.mark.parametrize(
    "origin", ["http://evil.test", "null", "http://127.0.0.1:1", "https://127.0.0.1"]
)
def test_a_foreign_origin_is_let_read_nothing(prefect_server: PrefectServer, origin: str) -> None:
    url = f"{prefect_server.api_url}/admin/version"
    asks = {
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "authorization",
    }
    for auth in ({}, basic(prefect_server.auth)):
        for answer in (
            CLIENT.get(url, headers={"Origin": origin, **auth}),
            CLIENT.options(url, headers={"Origin": origin, **asks, **auth}),
        ):
            assert answer.status_code == 403
            assert "access-control-allow-origin" not in answer.headers


@pytest.mark.integration
def test_its_own_ui_may_read_and_is_shown_in_no_frame(prefect_server: PrefectServer) -> None:
    ui = prefect_server.api_url.removesuffix("/api")
    for origin in (ui, ui.replace("127.0.0.1", "localhost")):
        headers = {"Origin": origin, **basic(prefect_server.auth)}
        answer = CLIENT.get(f"{prefect_server.api_url}/admin/version", headers=headers)
        assert answer.headers["access-control-allow-origin"] == origin
    policy = CLIENT.get(ui, follow_redirects=True).headers["content-security-policy"]
    assert policy == "frame-ancestors 'self'"


@pytest.mark.integration
@pytest.mark.parametrize(
    "path", ["/events/out", "/events/in", "/logs/out", "/task_runs/subscriptions/scheduled"]
)
def test_sockets_ask_for_the_password_too(prefect_server: PrefectServer, path: str) -> None:
    url = prefect_server.api_url.replace("http", "ws", 1) + path
    here = urlsplit(url)
    with pytest.raises(InvalidStatus, match="403"):
        connect(url, subprotocols=PREFECT, additional_headers={"Origin": "http://evil.test"})
    with (
        socket.create_connection((here.hostname, here.port)) as connection,
        pytest.raises(InvalidStatus, match="403"),
    ):
        connect(url.replace("127.0.0.1", "evil.test"), subprotocols=PREFECT, sock=connection)
    with pytest.raises((InvalidStatus, ConnectionClosed)):
        connect(url).recv(200)
    for token in (None, "", "guessed:guessed"):
        with connect(url, subprotocols=PREFECT) as one:
            one.send(json.dumps({"type": "auth", "token": token}))
            with pytest.raises(ConnectionClosed):
                one.recv(200)
    with connect(url, subprotocols=PREFECT) as one:
        one.send(json.dumps({"type": "auth", "token": prefect_server.auth}))
        assert json.loads(one.recv(200)) == {"type": "auth_success"}


@pytest.mark.integration
def test_the_password_is_in_no_command_line_log_or_other_file(served_machine: Machine) -> None:
    auth = read_auth(served_machine.state_dir)
    assert len(auth) > 40
    known = read_server(served_machine.state_dir) or {}
    for role in ("server", "worker", "caretaker"):
        command = Path(f"/proc/{known[f'{role}_pid']}/cmdline")
        if command.exists():
            assert auth.encode() not in command.read_bytes()
    told = served_machine.run("up")
    assert auth not in told.stdout + told.stderr
    assert 'PREFECT_API_AUTH_STRING="$(cat ' in told.stdout + told.stderr
    holding = list[str]()
    for folder, _, names in os.walk(served_machine.root):  # rglob fails if a job's folder goes
        for file in (Path(folder, name) for name in names):
            with suppress(FileNotFoundError):
                if stat.S_ISREG(file.lstat().st_mode) and auth.encode() in file.read_bytes():
                    holding.append(file.relative_to(served_machine.root).as_posix())
    assert holding == ["state/server-auth"]


@pytest.mark.integration
@pytest.mark.parametrize("url", [pytest.param(True, marks=pytest.mark.extended), False])
def test_commands_find_it_with_and_without_an_address(served_machine: Machine, url: bool) -> None:
    """Run commands in a shell with only the address exported, which older releases needed."""
    address = {"PREFECT_API_URL": served_machine.api_url.replace("127.0.0.1", "localhost")}
    config = str(served_machine.folder("true\n", project="undeployed"))
    told = served_machine.run(
        "push", config, "--deployment", "train/nobodys", check=False, **(address if url else {})
    )
    assert "No deployment is called 'train/nobodys'" in told.stderr
    assert "train/train" in told.stderr
    assert "undeployed" not in served_machine.run("view").stdout


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("url", [pytest.param(True, marks=pytest.mark.extended), False])
def test_a_job_in_its_own_process_reports_to_the_server(served_machine: Machine, url: bool) -> None:
    address = {"PREFECT_API_URL": served_machine.api_url} if url else {}
    job_id = served_machine.push(served_machine.folder("true\n"), **address)["id"]
    served_machine.wait(job_id, "COMPLETED")
    (run,) = served_machine.ledger.runs.list(job_id)
    assert call(served_machine, "GET", f"flow_runs/{run.flow_run_id}")["name"]


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    "first", ["import prefect", pytest.param("import prefect_bt", marks=pytest.mark.extended)]
)
def test_a_program_needs_nothing_but_the_address(served_machine: Machine, first: str) -> None:
    """Save a block and call a flow, as a notebook does."""
    config = served_machine.folder("true\n")
    program = f"""
{first}
from prefect_bt.blocks import RetryPolicy
from prefect_bt.flows.train import train
RetryPolicy(user=1).save("of-a-notebook", overwrite=True)
train({str(config)!r})
"""
    address = {"PREFECT_API_URL": served_machine.api_url}
    here = Machine(served_machine.root, {**served_machine.environment, **address})
    done = here.python(program)
    assert done.returncode == 0, done.stderr
    path = "block_types/slug/prefect-bt-retry-policy/block_documents/name/of-a-notebook"
    assert call(served_machine, "GET", path)["data"]["user"] == 1


# --- a new one --------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.integration
def test_a_new_password_as_documented(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run `down`, delete the file, run `up`, in a shell with the exported line."""
    first = server.up(worker=False, port=free_port(), echo=lambda _: None)
    old = read_auth(home / "state")
    monkeypatch.setenv("PREFECT_API_URL", first["api_url"])
    monkeypatch.setenv(CLIENT_VARIABLE, old)
    server.down(force=True, echo=lambda _: None)
    auth_file(home / "state").unlink()
    second = server.up(worker=False, port=urlsplit(first["api_url"]).port, echo=lambda _: None)
    try:
        new = read_auth(home / "state")
        url = f"{second['api_url']}/admin/version"
        told = [CLIENT.get(url, headers=basic(auth)).status_code for auth in (old, new)]
        assert told == [401, 200]
    finally:
        server.down(force=True, echo=lambda _: None)
