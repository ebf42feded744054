"""Projects and jobs over HTTP: lists, filters, changes; each answer fits the published models."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from baseten.client import ManagementClient
from baseten.client.managementapi import SearchTrainingJobsRequest

from prefect_bt.definitions import Compute
from prefect_bt.http_api.uploads import staging
from prefect_bt.jobs import submit
from prefect_bt.jobs.starting.start_queued import build_queued_job
from prefect_bt.ledger.states import JobState
from prefect_bt.queue.leases import Leases
from prefect_bt.queue.records import Demand, QueuedJob
from prefect_bt.queue.waiting_jobs import add_waiting_job
from tests.cli.conftest import ENDED, RUNNING, Shop
from tests.http_api.served import Api
from tests.serving import committed

IMAGE = {"image": {"base_image": "python:3.11"}}


def _search(api: Api, **body: Any) -> list[str]:
    found = api.post("/v1/training_jobs/search", body)["training_jobs"]
    return [job["id"] for job in found]


def test_jobs_are_found_by_state_project_and_id(api: Api, shop: Shop):
    ended, other = shop.job("a", *ENDED), shop.job("b", *RUNNING, JobState.FAILED)
    last = shop.job("a", *ENDED)
    assert _search(api) == [last.id, other.id, ended.id]
    ascending = [{"field": "created_at", "order": "asc"}]
    assert _search(api, order_by=ascending) == [ended.id, other.id, last.id]
    assert _search(api, project_id=other.project_id, statuses=None) == [other.id]
    assert _search(api, project_id="b") == [other.id]
    assert _search(api, project_id="nope") == []
    assert _search(api, job_id=last.id, project_id=None) == [last.id]
    assert _search(api, job_id=last.id, project_id=other.project_id) == []
    assert _search(api, statuses=["TRAINING_JOB_FAILED"]) == [other.id]
    assert _search(api, statuses=["TRAINING_JOB_RUNNING", "TRAINING_JOB_PENDING"]) == []
    assert _search(api, job_id="0000000") == []


def test_a_waiting_job_changes_its_priority_and_availability(api: Api, shop: Shop):
    record = shop.job("tiny", compute=Compute(accelerator="H100:2"))
    api.ledger.append_event(record.id, JobState.PENDING)
    number, _ = api.ledger.find_last_event(record.id)
    waiting = QueuedJob(record.id, Demand(2, "H100"), record.created_at, event=number)
    add_waiting_job(api.ledger, waiting)
    path = f"/v1/training_projects/{record.project_id}/jobs/{record.id}"
    for change in ({"priority": 7}, {"availability_model": "spot"}):
        job = api("PATCH", path, json=change).json()["training_job"]
        assert job.items() >= change.items()
    context = api.get(f"/v1/training/jobs/{record.id}/queue_context")
    assert (context["requested_gpus"], context["place"]) == (2, 1)
    assert api.get(path)["training_job"]["priority"] == 7


@pytest.mark.parametrize(("memory", "gib"), [("64Mi", 1), ("700Mi", 1), ("3Gi", 3)])
def test_an_instance_has_memory(api: Api, shop: Shop, memory: str, gib: int):
    record = shop.job("tiny", *ENDED, compute=Compute(memory=memory))
    job = api.get(f"/v1/training_projects/tiny/jobs/{record.id}")["training_job"]
    assert job["instance_type"]["id"] == f"CPU:1x0x1x{gib}"


@pytest.mark.parametrize("name", ["", "ZZ:1x1x1x1", "H100:1x0x1x1", f"H100:1x{'1' * 5000}x1x1"])
def test_an_instance_that_is_not_listed_is_refused(api: Api, tmp_path: Path, name: str):
    shop = committed.Shop(tmp_path, api.ledger)
    record = shop.job()
    shop.commit(record, {"checkpoint-1": committed.full()})
    checkpoint = {"training_job_id": record.id, "checkpoint_name": "checkpoint-1"}
    request = {
        "metadata": {"oracle_name": "m"},
        "weights_sources": [{"b10_training_checkpoint_weights_source": {"checkpoint": checkpoint}}],
        "instance_type_id": name,
    }
    query = "mutation { create_model_version_from_inference_template { truss_config } }"
    answer = api.post("/graphql/", {"query": query, "variables": {"request": request}})
    assert answer["errors"][0]["message"].startswith(f"No instance type is called '{name[:20]}")


def test_a_copy_and_a_return_to_the_queue_keep_the_changes(
    api: Api, shop: Shop, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(submit, "open_job_launcher", lambda _: nullcontext())
    monkeypatch.setattr(submit, "start_job", lambda *_: None)
    record = shop.job("tiny", priority=1)
    api.ledger.append_event(record.id, JobState.PENDING)
    number, _ = api.ledger.find_last_event(record.id)
    waiting = QueuedJob(record.id, Demand(2, "H100"), record.created_at, event=number)
    add_waiting_job(api.ledger, waiting)
    path = f"/v1/training_projects/{record.project_id}/jobs/{record.id}"
    change = {"priority": 7, "availability_model": "spot"}
    assert api("PATCH", path, json=change).status_code == 200
    queued = build_queued_job(api.ledger, record)
    assert (queued.priority, queued.spot) == (7, True)
    copy = api.post(f"{path}/recreate", {})["training_job"]
    assert copy.items() >= change.items()
    assert api.ledger.get_job(copy["id"]).definition["job"]["priority"] == 7


@pytest.mark.parametrize(
    "change", [{}, {"priority": None}, {"priority": True}, {"priority": 2**63}]
)
def test_a_change_without_a_usable_value_is_refused(api: Api, shop: Shop, change: dict[str, Any]):
    record = shop.job("tiny")
    path = f"/v1/training_projects/{record.project_id}/jobs/{record.id}"
    assert api("PATCH", path, json=change).status_code == 400


def test_a_job_that_has_ended_is_not_stopped_or_changed(api: Api, shop: Shop):
    record = shop.job("tiny", *ENDED)
    path = f"/v1/training_projects/{record.project_id}/jobs/{record.id}"
    for method, where, body in (("POST", "/stop", None), ("PATCH", "", {"priority": 1})):
        answer = api(method, f"{path}{where}", json=body)
        assert answer.status_code == 409
        assert record.id in answer.json()["message"]


def test_a_deleted_job_or_project_is_unknown(api: Api, shop: Shop):
    record = shop.job("tiny", *ENDED)
    path = f"/v1/training_projects/{record.project_id}"
    deleted = {"id": record.id, "deleted": True, "training_project_id": record.project_id}
    assert api("DELETE", f"{path}/jobs/{record.id}").json() == deleted
    assert api("GET", f"{path}/jobs/{record.id}").status_code == 404
    assert api("DELETE", path).json() == {"id": record.project_id, "deleted": True}
    assert api.get("/v1/training_projects") == {"training_projects": []}


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({}, "image"),
        ({"image": {"base_image": "python:3.11"}, "surprise": 1}, "surprise"),
        ({**IMAGE, "compute": {"accelerator": {"accelerator": "H100", "count": 0.5}}}, "count"),
        ({**IMAGE, "runtime": []}, "runtime"),
        ({**IMAGE, "runtime": {"artifacts": [{"s3_bucket": "b"}]}}, "artifacts"),
        ({**IMAGE, "runtime": {"artifacts": [{"s3_bucket": "b", "s3_key": "k"}] * 2}}, "artifacts"),
        ({**IMAGE, "name": "a\0b"}, "name"),
        ({**IMAGE, "compute": {"node_count": 0}}, "node_count"),
        ({**IMAGE, "compute": {"cpu_count": True}}, "cpu_count: True was given; write an integer"),
        ({**IMAGE, "compute": {"cpu_count": 10**30}}, "write a smaller integer"),
        ({**IMAGE, "priority": -(10**30)}, "write a smaller integer"),
        ({**IMAGE, "runtime": {"start_commands": ["a\0b"]}}, "Remove zero bytes"),
        ({**IMAGE, "compute": {"accelerator": f"H100:{'1' * 5000}"}}, "of at most 6 digits"),
    ],
)
def test_a_job_that_is_not_valid_is_refused_and_leaves_nothing(
    api: Api, job: dict[str, Any], words: str
):
    project = api.post("/v1/training_projects", {"training_project": {"name": "p"}})
    path = f"/v1/training_projects/{project['training_project']['id']}/jobs"
    answer = api("POST", path, json={"training_job": job})
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["message"]
    assert api.get(path)["training_jobs"] == []


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({**IMAGE, "surprise": 1}, "surprise"),
        ({**IMAGE, "compute": {"accelerator": {"accelerator": "H100", "count": 8}}}, "planned"),
        ({**IMAGE, "runtime": {"start_commands": ["true"]}}, "archive"),
    ],
    ids=["definition", "plan", "archive"],
)
def test_an_upload_of_a_refused_job_gives_way_to_a_new_one(
    api: Api, job: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(staging, "MAX_OPEN_UPLOADS", 2)
    project = api.post("/v1/training_projects", {"training_project": {"name": "p"}})
    path = f"/v1/training_projects/{project['training_project']['id']}/jobs"
    artifacts = list[Any]()
    for _ in range(3):
        sent = api("PUT", "/prefect-bt/v1/workspaces", content=b"not an archive")
        assert sent.status_code == 200, sent.text
        artifacts.append(sent.json()["result"])
        runtime = {**job.get("runtime", {}), "artifacts": artifacts[-1:]}
        for _ in range(2):
            answer = api("POST", path, json={"training_job": {**job, "runtime": runtime}})
            assert (answer.status_code, words in answer.text) == (400, True), answer.text
    left = {f"{one.name}/workspace.tgz" for one in api.site.uploads._folder.iterdir()}
    assert left == {one["s3_key"] for one in artifacts[1:]}


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "a\0b", "\ud800", "x" * 300, "\u00e9" * 50])
def test_a_project_and_a_team_have_usable_names(api: Api, name: str):
    headers = {"Content-Type": "application/json"}
    for names in ({"name": name}, {"name": "a", "team_name": name}):
        body = json.dumps({"training_project": names})
        answer = api("POST", "/v1/training_projects", content=body, headers=headers)
        is_default = not names.get("team_name", "x")
        assert answer.status_code == (200 if is_default else 400), answer.text
    limit = json.dumps({"team_id": name, "gpu_type": "H100", "max_gpus": 1})
    answer = api("PATCH", "/v1/training/capacity", content=limit, headers=headers)
    assert answer.status_code == 400, answer.text
    assert [team["name"] for team in api.get("/v1/teams")["teams"]] == ["default"]


@pytest.mark.parametrize("change", [{"gpu_type": "h100"}, {"max_gpus": 10**30}, {"max_gpus": True}])
def test_a_limit_has_a_known_type_and_a_size(api: Api, change: dict[str, Any]):
    body = {"team_id": "default", "gpu_type": "H100", "max_gpus": 1, **change}
    assert api("PATCH", "/v1/training/capacity", json=body).status_code == 400


def test_a_team_of_a_key_or_a_limit_exists(api: Api):
    api.team_key("research")
    body = {"team_id": "blue", "gpu_type": "H100", "max_gpus": 1}
    assert api("PATCH", "/v1/training/capacity", json=body).status_code == 200
    teams = api.get("/v1/teams")["teams"]
    assert [team["name"] for team in teams] == ["default", "blue", "research"]
    assert all(team["created_at"] > "2020" for team in teams)


def test_the_published_client_reads_every_answer(api: Api, shop: Shop):
    """The models of the PyPI package `baseten` refuse an answer that lacks a field."""
    ended = shop.job("tiny", *ENDED)
    waiting = shop.job("tiny", compute=Compute(accelerator="H100:2", node_count=2))
    api.ledger.append_event(waiting.id, JobState.PENDING)
    number, _ = api.ledger.find_last_event(waiting.id)
    queued = QueuedJob(
        waiting.id, Demand(4, "H100"), 1.0, event=number, project_id=waiting.project_id
    )
    add_waiting_job(api.ledger, queued)
    running, leases = shop.job("tiny", *RUNNING), Leases(api.ledger.store)
    leases.read()
    leases.create(QueuedJob(running.id, Demand(8, "H100"), 1.0), host="a1")
    client = ManagementClient(api_key=api.key, base_url_override=api.url).api
    ids = {"training_project_id": ended.project_id, "training_job_id": ended.id}
    assert [p.name for p in client.get_training_projects().training_projects] == ["tiny"]
    client.get_training_projects_training_project_id(training_project_id=ended.project_id)
    assert (
        len(client.get_training_projects_jobs(training_project_id=ended.project_id).training_jobs)
        == 3
    )
    assert client.get_training_projects_jobs_training_job_id(**ids).training_job.id == ended.id
    found = client.post_training_jobs_search(request=SearchTrainingJobsRequest()).training_jobs
    assert {job.id for job in found} == {ended.id, waiting.id, running.id}
    client.get_training_capacity()
    client.get_teams()
    context = client.get_training_jobs_queue_context(training_job_id=waiting.id)
    assert (context.requested_gpus, context.active_at_submit[0].total_gpus) == (4, 8)
    client.get_training_jobs_queue_context(training_job_id=ended.id)
    assert client.get_training_projects_jobs_auth_codes(**ids).auth_codes == []
