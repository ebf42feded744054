"""Jobs that wait for a cluster: in the queue of the store, and in that of Kueue."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest

from prefect_bt.substrates.kubernetes.names import LABEL_JOB
from tests.e2e.conftest import until

from .cluster_site import PATCH, RBAC, ClusterMachine, ClusterSite

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PATIENCE = 30.0


def rows(machine: ClusterMachine) -> list[dict[str, Any]]:
    return json.loads(machine.run("queue", "-o", "json").stdout)


def queue_note(job: dict[str, Any]) -> str:
    """Return the note of a push whose job does not wait in the queue, or nothing."""
    return next((note for note in job["notes"] if "queue-rbac.yaml" in note), "")


def jobs_with_pods(site: ClusterSite) -> set[str]:
    return {pod["metadata"]["labels"][LABEL_JOB] for pod in site.list_objects("pods")}


@pytest.mark.extended
def test_kueue_holds_a_job_for_longer_than_the_patience(
    machine: ClusterMachine, site: ClusterSite
) -> None:
    settings = site.settings(queue_name="team-a", patience_seconds=PATIENCE).model_dump_json()
    config = machine.job_folder("echo it starts", nodes=2)
    job_id = str(machine.push(config, PREFECT_BT_KUBERNETES=settings)["id"])
    said = "it waits in the queue team-a of Kueue"
    until(lambda: said in machine.logs(job_id), seconds=60, what=said)
    assert rows(machine) == []
    time.sleep(PATIENCE + 1)
    (job,) = site.list_objects("jobs", group="/apis/batch/v1")
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert machine.view(job_id)["current_status"] == "TRAINING_JOB_DEPLOYING"
    path = f"/apis/batch/v1/namespaces/{site.namespace}/jobs/{job['metadata']['name']}"
    site.admin.request("PATCH", path, body={"spec": {"suspend": False}})
    machine.wait(job_id, "COMPLETED", seconds=120)
    machine.nothing_left_in_cluster(job_id)


@pytest.mark.extended
def test_the_second_of_two_jobs_for_all_the_cpus_waits_without_a_process(
    machine: ClusterMachine, site: ClusterSite
) -> None:
    if site.cluster is None:
        pytest.skip("only the small cluster has machines for these jobs alone")
    patch: Any = copy.deepcopy(PATCH)
    commands = patch["spec"]["template"]["spec"]["containers"][1]
    commands["resources"] = {"requests": {"cpu": "63", "memory": "32Mi"}}
    settings = {"PREFECT_BT_KUBERNETES": site.settings(job_patch=patch).model_dump_json()}
    unqueued = machine.push(machine.job_folder("true"), **settings)
    assert "cannot list resource" in queue_note(unqueued)
    machine.wait(unqueued["id"], "COMPLETED", seconds=120)
    site.cluster.apply(RBAC.with_name("queue-rbac.yaml").read_text())
    first = machine.push(machine.job_folder("sleep 600", nodes=2), **settings)
    second = machine.push(machine.job_folder("echo it starts", nodes=2), **settings)
    assert [queue_note(first), queue_note(second)] == ["", ""]
    (row,) = rows(machine)
    assert (row["id"], row["cpus"]) == (second["id"], 126.02)
    assert row["waiting_for"].startswith("126.02 CPUs: ")
    assert machine.view(second["id"])["current_status"] == "TRAINING_JOB_PENDING"
    until(lambda: not machine.job_processes(second["id"]), seconds=30, what="no process of it")
    machine.wait(first["id"], "RUNNING", seconds=120)
    assert jobs_with_pods(site) == {first["id"]}
    (place,) = [
        one
        for one in json.loads(machine.run("capacity", "view", "-o", "json").stdout)["machines"]
        if one["name"].endswith(f"/{site.namespace}")
    ]
    assert (place["cpus"], place["jobs"]) == (128, [first["id"]])
    machine.run("stop", "--job-id", first["id"])
    machine.wait(second["id"], "COMPLETED", seconds=120)
    assert "it starts" in machine.logs(second["id"])
    assert rows(machine) == []
    machine.nothing_left_in_cluster(second["id"])
