"""Secrets over HTTP: Prefect Secret blocks, which jobs use; values are never answered."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prefect_bt.credentials.secrets import resolve_secrets
from prefect_bt.host.processes import read_start_time
from prefect_bt.local_server.discovery import write_server
from prefect_bt.local_server.password import write_auth
from prefect_bt.prefect_api.client import SecretBlocks
from tests.http_api.served import Api
from tests.prefect_server import PrefectServer

pytest_plugins = ["tests.prefect_server"]
pytestmark = [pytest.mark.integration]


@pytest.fixture
def with_prefect(api_environment: Path, prefect_server: PrefectServer) -> None:
    """Let the state folder name the Prefect server, as `prefect-bt up` does."""
    state_dir, process = api_environment / "state", os.getpid()
    write_auth(state_dir, prefect_server.auth)
    began = read_start_time(process)
    document = {"api_url": prefect_server.api_url, "server_pid": process, "server_started": began}
    write_server(state_dir, document)


@pytest.mark.usefixtures("with_prefect")
def test_a_secret_that_was_written_is_that_of_a_job(api: Api):
    for value in ("first", "0123", "sekrit"):
        written = api.post("/v1/secrets", {"name": "hf_api_test", "value": value})
        assert written["name"] == "hf_api_test"
    red = api.team_key("red")
    own = api.post("/v1/secrets", {"name": "hf_api_test", "value": "ours"}, key=red)
    assert own["team_name"] == "red"
    found = resolve_secrets(["hf_api_test"], [SecretBlocks()])
    assert found == {"hf_api_test": "sekrit"}
    assert resolve_secrets(["hf_api_test"], [SecretBlocks()], team="red") == {"hf_api_test": "ours"}
    listed = api("GET", "/v1/secrets").text
    assert "hf-api-test" in listed
    assert "sekrit" not in listed
    names = [one["name"] for one in api.get("/v1/teams/red/secrets", key=red)["secrets"]]
    assert "hf-api-test" in names


@pytest.mark.parametrize("name", ["", "a/b", "a b", "%"])
def test_a_secret_has_a_usable_name(api: Api, name: str):
    assert api("POST", "/v1/secrets", json={"name": name, "value": "x"}).status_code == 400


def test_without_prefect_a_secret_is_refused(api: Api):
    answer = api("POST", "/v1/secrets", json={"name": "a", "value": "x"})
    assert (answer.status_code, "prefect-bt up" in answer.json()["message"]) == (503, True)
