"""Requests without a valid key learn and do nothing; a key of a team sees that team's things."""

from __future__ import annotations

import json
import socket
import threading
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.errors import StoreError, UsageError
from prefect_bt.http_api.app import create_app, open_site
from prefect_bt.http_api.keys import ApiKeys
from prefect_bt.http_api.middleware import MAX_BODY_BYTES
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.object_store.disk import DiskStore
from prefect_bt.serving.deployment_records import DeploymentLedger, Revision
from tests.cli.conftest import ENDED, RUNNING, Shop
from tests.http_api.served import Api
from tests.jobs.records import new_record, small_project
from tests.written_jobs import write_job

JOB = "/v1/training_projects/{project_id}/jobs/{job_id}"


def _routes(api: Api) -> list[tuple[str, str]]:
    """Return all routes of the OpenAPI document that need a key."""
    paths: dict[str, Any] = create_app(api.site).openapi()["paths"]
    return [
        (method.upper(), path)
        for path, methods in paths.items()
        for method in methods
        if not path.startswith(("/uploads", "/files", "/training/", "/models/", "/login"))
    ]


def test_no_route_answers_without_a_valid_key(api: Api, shop: Shop):
    record = shop.job("tiny", *ENDED)
    revoked, told = api.site.keys.create("revoked")
    api.site.keys.revoke(told.id)
    for key in ("", "x", revoked, f"{api.key[:-1]}{'0' if api.key[-1] != '0' else '1'}"):
        for method, path in _routes(api):
            target = path.format_map(
                {"project_id": record.project_id, "job_id": record.id, **dict.fromkeys(_NAMES, "x")}
            )
            answer = api(method, target, key=key, json={})
            assert answer.status_code == 401, (key, method, path, answer.text)
            assert list(answer.json()) == ["message"]
            assert record.id not in answer.text


_NAMES = ("team_id", "session_id", "checkpoint_id", "secret_name", "upload_id", "key")


@pytest.mark.parametrize("scheme", ["Api-Key", "api-key", "Bearer"])
def test_a_key_is_accepted_in_both_forms(api: Api, scheme: str):
    headers = {"Authorization": f"{scheme} {api.key}"}
    assert api("GET", "/v1/teams", key="", headers=headers).status_code == 200


def test_another_team_is_unknown(api: Api):
    theirs = new_record(api.ledger, small_project("secret-plan", team="red"))
    write_job(api.ledger, theirs, state=JobState.CREATED)
    blue = api.team_key("blue")
    for method, path in _routes(api):
        if "{job_id}" not in path and "{project_id}" not in path:
            continue
        answers = [
            api(
                method,
                path.format_map({**dict.fromkeys(_NAMES, "x"), **ids}),
                key=blue,
                json={"training_job": {}, "public_key": "x", "replica_id": "0"},
            )
            for ids in (
                {"project_id": theirs.project_id, "job_id": theirs.id},
                {"project_id": "0000000", "job_id": "0000000"},
            )
        ]
        assert [one.status_code for one in answers] == [404, 404], (method, path, answers[0].text)
        shapes = [
            one.text.replace(theirs.project_id, "ID")
            .replace(theirs.id, "ID")
            .replace("0000000", "ID")
            for one in answers
        ]
        assert shapes[0] == shapes[1]
        assert "secret-plan" not in answers[0].text
    for path in ("/v1/training_projects", "/v1/teams", "/v1/training/capacity"):
        assert "red" not in api("GET", path, key=blue).text
    assert api("POST", "/v1/training_jobs/search", key=blue, json={}).json() == {
        "training_jobs": []
    }


def test_a_key_of_a_team_cannot_load_checkpoints_of_another(api: Api):
    theirs = new_record(api.ledger, small_project("secret-plan", team="red"))
    write_job(api.ledger, theirs)
    blue = api.team_key("blue")
    project = api.post("/v1/training_projects", {"training_project": {"name": "p"}}, key=blue)
    path = f"/v1/training_projects/{project['training_project']['id']}/jobs"
    named = {"typ": "baseten_named_checkpoint", "job_id": theirs.id, "checkpoint_name": "x"}
    latest = {"typ": "baseten_latest_checkpoint", "project_name": "secret-plan"}
    weights = [{"source": "bt://secret-plan", "mount_location": "/w"}]
    jobs: list[dict[str, Any]] = [
        {"runtime": {"load_checkpoint_config": {"enabled": True, "checkpoints": [named]}}},
        {"runtime": {"load_checkpoint_config": {"enabled": True, "checkpoints": [latest]}}},
        {"weights": weights},
    ]
    for job in jobs:
        body = {"training_job": {"image": {"base_image": "python:3.11"}, **job}}
        answer = api("POST", path, key=blue, json=body)
        assert answer.status_code == 404, answer.text
        assert "red" not in answer.text


def test_a_key_of_a_team_does_not_deploy_onto_another(api: Api):
    """A deployment belongs to the team whose checkpoints it serves; an unused name is free."""
    jobs = dict[str, JobRecord]()
    for team in ("red", "blue"):
        jobs[team] = new_record(api.ledger, small_project(f"of {team}", team=team))
        write_job(api.ledger, jobs[team])
    served = Revision(1, 1.0, "vllm", "full", ("m",), ((jobs["red"].id, "c"),), gate=None)
    deployments = DeploymentLedger(api.ledger)
    deployments.ensure_deployment("stories")
    deployments.add_revision("stories", lambda _: served)
    blue, red = api.team_key("blue"), api.team_key("red")
    refused = "no access to a deployment 'stories'"
    assert refused in _deploy(api, "stories", jobs["blue"].id, blue)
    # Allowed, and refused for another reason: the jobs have no checkpoint.
    for name, team, key in (("tales", "blue", blue), ("stories", "red", red)):
        assert jobs[team].id in _deploy(api, name, jobs[team].id, key)
        assert refused not in _deploy(api, name, jobs[team].id, key)


def _deploy(api: Api, name: str, job_id: str, key: str) -> str:
    """Ask for a deployment of a checkpoint; return the message of the error."""
    checkpoint = {"training_job_id": job_id, "checkpoint_name": "checkpoint-1"}
    request = {
        "metadata": {"oracle_name": name},
        "weights_sources": [{"b10_training_checkpoint_weights_source": {"checkpoint": checkpoint}}],
    }
    query = "mutation { create_model_version_from_inference_template { truss_config } }"
    body = {"query": query, "variables": {"request": request}}
    return api.post("/graphql/", body, key=key)["errors"][0]["message"]


@pytest.mark.parametrize("team", ["red", "default"])
def test_a_key_of_a_team_creates_projects_of_that_team_only(api: Api, team: str):
    key = api.team_key(team)
    own = api.post("/v1/training_projects", {"training_project": {"name": "p"}}, key=key)
    assert own["training_project"]["team_name"] == (None if team == "default" else team)
    for path, body in (
        ("/v1/training_projects", {"name": "p", "team_name": "blue"}),
        ("/v1/teams/blue/training_projects", {"name": "p"}),
    ):
        answer = api("POST", path, key=key, json={"training_project": body})
        assert answer.status_code == 403
    body = {"team_id": "blue", "gpu_type": "H100", "max_gpus": 1}
    assert api("PATCH", "/v1/training/capacity", key=key, json=body).status_code == 403


# --- keys -------------------------------------------------------------------------------------


def test_a_key_is_stored_as_a_hash_and_found_by_every_server(tmp_path: Path):
    store, clock = DiskStore(tmp_path), iter(range(1000, 2000, 10))
    keys = ApiKeys(store, clock=lambda: float(next(clock)))
    key, record = keys.create("ci", team="red", lifetime=50)
    assert key.startswith("prefect-bt-")
    assert all(key[-40:].encode() not in store.get(info.key) for info in store.list(""))
    assert ApiKeys(store, clock=lambda: 1010.0).verify(key) == record
    assert ApiKeys(store, clock=lambda: 1051.0).verify(key) is None
    with pytest.raises(UsageError, match="'ci' exists"):
        keys.create("ci")


def test_a_revoked_key_is_refused_within_seconds(tmp_path: Path):
    store, now = DiskStore(tmp_path), [0.0]
    server = ApiKeys(store, clock=lambda: now[0])
    key, _ = server.create("laptop")
    assert server.verify(key)
    ApiKeys(store).revoke("laptop")
    now[0] = 5.0
    assert server.verify(key) is None


def test_a_followed_log_ends_with_its_key(api: Api, shop: Shop):
    key, record = api.site.keys.create("visitor")
    job = shop.job("tiny", *RUNNING)
    path = f"/prefect-bt/v1/jobs/{job.id}/lines?follow=true"
    with api.client.stream("GET", path, headers={"Authorization": f"Bearer {key}"}) as answer:
        lines = answer.iter_lines()
        assert "Job accepted." in next(lines)
        api.site.keys.revoke(record.id)
        api.site.keys._recent.clear()  # as after five seconds
        assert "is_last" not in "".join(lines)
    assert api("GET", path, key=key).status_code == 401


@pytest.mark.parametrize("name", ["", "  ", "a\nb"])
def test_a_key_has_a_usable_name(tmp_path: Path, name: str):
    with pytest.raises(UsageError, match="not the name of a key"):
        ApiKeys(DiskStore(tmp_path)).create(name)


def test_a_lifetime_without_an_end_is_refused(tmp_path: Path):
    keys = ApiKeys(DiskStore(tmp_path))
    with pytest.raises(UsageError, match="within 100 years"):
        keys.create("ci", lifetime=1e15)
    assert keys.list() == []


def test_a_store_that_cannot_be_written_is_an_error_at_the_start(
    api_environment: Path, monkeypatch: pytest.MonkeyPatch
):
    (api_environment / "file").touch()
    monkeypatch.setenv("PREFECT_BT_STORE", str(api_environment / "file" / "store"))
    with pytest.raises(StoreError, match=r"cannot write to its store .*file/store"):
        open_site()


def test_a_store_that_is_not_mounted_is_no_refusal_of_a_key(api: Api, api_environment: Path):
    store = api_environment / "store"
    store.rename(api_environment / "elsewhere")
    api.site.keys._recent.clear()
    answer = api("DELETE", "/v1/training_projects/tiny")
    assert (answer.status_code, str(store) in answer.json()["message"]) == (503, True)
    assert answer.headers["Retry-After"] == "1"


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("POST", "/logs"), ("POST", "/metrics")])
def test_reads_wait_for_the_store(
    api: Api, shop: Shop, api_environment: Path, method: str, path: str
):
    record = shop.job("tiny", *ENDED)
    store, aside = api_environment / "store", api_environment / "aside"
    store.rename(aside)
    threading.Timer(0.2, aside.rename, [store]).start()
    answer = api(
        method, f"/v1/training_projects/{record.project_id}/jobs/{record.id}{path}", json={}
    )
    assert answer.status_code == 200, answer.text


def test_reads_do_not_wait_forever(
    api: Api, api_environment: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("prefect_bt.http_api.middleware._PATIENCE", 0.1)
    (api_environment / "store").rename(api_environment / "aside")
    assert api("GET", "/v1/training_projects").status_code == 503


# --- clients ----------------------------------------------------------------------------------


def test_json_is_read_as_curl_sends_it(api: Api, shop: Shop):
    record = shop.job("tiny", *ENDED)
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    body = json.dumps({"project_id": "tiny"})
    answer = api("POST", "/v1/training_jobs/search", content=body, headers=headers)
    assert [job["id"] for job in answer.json()["training_jobs"]] == [record.id]


def test_empty_parameters_are_not_given(api: Api, shop: Shop):
    record = shop.job("tiny", *ENDED)
    path = JOB.format(project_id=record.project_id, job_id=record.id)
    assert api.get(f"{path}/checkpoint_files?page_size=1000&page_token=")["total_count"] == 0
    assert api.get(f"{path}/logs?start_epoch_millis=&end_epoch_millis=&limit=1")


def test_head_is_answered_where_get_is(api: Api, shop: Shop):
    record = shop.job("tiny", *ENDED)
    for path in ("/health", "/v1/teams", JOB.format(project_id="tiny", job_id=record.id)):
        answer = api("HEAD", path)
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-length"] == api("GET", path).headers["content-length"]
    assert api("HEAD", "/v1/teams", key="").status_code == 401


# --- the forward proxy ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "http://api.localhost:8000/v1/teams", 200),
        ("GET", "http://LOCALHOST:8000/v1/teams?x=1", 200),
        ("GET", "http://api.baseten.co/v1/teams", 403),
        ("GET", "http://localhost:8001/v1/teams", 403),
        ("GET", "http://user@localhost:8000/v1/teams", 403),
        ("GET", "https://localhost:8000/v1/teams", 403),
        ("CONNECT", "api.baseten.co:443", 403),
        ("CONNECT", "localhost:8000", 403),
        ("POST", "//graphql/", 200),
    ],
)
def test_it_is_a_proxy_for_its_two_names_only(api: Api, method: str, target: str, status: int):
    connection = HTTPConnection(api.url.removeprefix("http://"))
    headers = {"Authorization": f"Api-Key {api.key}", "Content-Type": "application/json"}
    body = '{"query": "{teams{id name default}}"}' if method == "POST" else None
    connection.request(method, target, body=body, headers=headers)
    answer = connection.getresponse()
    assert answer.status == status
    assert b"message" in answer.read() or status == 200
    connection.close()


@pytest.mark.parametrize("target", ["http://[::1/v1/teams", "http://[bad]:8000/", "x"])
def test_what_is_no_address_is_refused(api: Api, target: str):
    connection = HTTPConnection(api.url.removeprefix("http://"))
    connection.putrequest("GET", target, skip_host=True)
    connection.putheader("Host", "localhost")
    connection.endheaders()
    assert connection.getresponse().status == 403
    connection.close()


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_large_body_is_refused_before_it_is_read(api: Api, is_chunked: bool):
    """Also without a key: the body is read first."""
    size = MAX_BODY_BYTES + 1
    body: Any = (b" " * 1024 for _ in range(size // 1024 + 1)) if is_chunked else b" " * size
    answer = api("POST", "/v1/training_jobs/search", key="", content=body)
    assert (answer.status_code, answer.json()) == (413, {"message": "A body has at most 16 MiB."})


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("PUT", "/uploads/uploads/x/workspace.tgz"),
        ("PUT", "/prefect-bt/v1/workspaces"),
        ("POST", "/nothing"),
        ("POST", "http://api.baseten.co/v1/teams"),
        ("GET", "/health"),
    ],
)
def test_an_answer_to_a_client_that_holds_back_its_body_ends_the_connection(
    api: Api, method: str, target: str
):
    """Such a client sends its next request, or the body."""
    host, _, port = api.url.removeprefix("http://").partition(":")
    lines = [f"{method} {target} HTTP/1.1", "Host: x", "Content-Length: 600"]
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall("\r\n".join([*lines, "Expect: 100-continue", "", ""]).encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200" if target == "/health" else b"HTTP/1.1 40")
    assert b"connection: close" in answer.lower()


def test_a_page_of_another_origin_is_not_allowed_to_ask(api: Api):
    headers = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    answer = api("OPTIONS", "/v1/training_jobs/search", key="", headers=headers)
    assert not any(name.startswith("access-control") for name in answer.headers)
