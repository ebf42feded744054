"""Whole jobs in a cluster; nothing of them stays in the namespace."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from prefect_bt.host.job_lock import is_owned
from prefect_bt.substrates.kubernetes.names import LABEL_JOB, LABEL_STORE, store_label
from tests.e2e.conftest import until

from .cluster_site import SAVE, WORD, ClusterMachine, ClusterSite

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_one_node_gives_what_one_machine_gives(machine: ClusterMachine, site: ClusterSite) -> None:
    script = f"""{SAVE}
    echo "rank $BT_NODE_RANK of $BT_GROUP_SIZE, attempt $BT_RETRY_COUNT, in $(pwd), $WORD"
    cat config.py | grep -c project
    save 1
    echo "into the pipe" >&2
    sleep 3
    """
    job = machine.completed(machine.job_folder(script))
    assert job["substrate"] == "kubernetes"
    log = machine.logs(job["id"])
    assert "rank 0 of 1, attempt 0, in /b10/workspace, ********" in log
    assert "into the pipe" in log
    assert machine.checkpoints(job["id"]) == ["checkpoint-1"]
    machine.nothing_left_in_cluster(job["id"])


def test_a_gang_of_two_meets_and_both_commit(machine: ClusterMachine) -> None:
    script = f"""{SAVE}
    if [ $BT_NODE_RANK = 0 ]; then
      echo "from the leader" | nc -l -p $BT_LEADER_PORT
    else
      until nc $BT_LEADER_ADDR $BT_LEADER_PORT > heard; do sleep 0.1; done
      cat heard
    fi
    save 1
    """
    job = machine.completed(machine.job_folder(script, nodes=2))
    assert "(rank-1) from the leader" in machine.logs(job["id"])
    assert machine.checkpoints(job["id"]) == ["checkpoint-1"]
    machine.nothing_left_in_cluster(job["id"])


@pytest.mark.extended
def test_a_failing_rank_is_retried_from_its_checkpoint(machine: ClusterMachine) -> None:
    script = f"""{SAVE}
    echo "attempt $BT_RETRY_COUNT ($BT_RETRY_REASON) finds $(newest)"
    save $(newest)
    sleep 2
    [ $BT_RETRY_COUNT-$BT_NODE_RANK = 0-1 ] && exit 7
    exit 0
    """
    job_id = str(machine.push(machine.job_folder(script, nodes=2), "--retries", "1")["id"])
    machine.wait(job_id, "COMPLETED", seconds=200)
    job, log = machine.view(job_id), machine.logs(job_id)
    assert [one["exit_code"] for one in job["attempts"]] == [7, None]
    assert job["attempts"][0]["failed_rank"] == 1
    assert "(rank-0) attempt 0 () finds 0" in log
    assert "(rank-1) attempt 1 (command_failed) finds 1" in log
    machine.nothing_left_in_cluster(job_id)


def test_secrets_are_in_the_secret_alone(machine: ClusterMachine, site: ClusterSite) -> None:
    job_id = str(machine.push(machine.job_folder('echo "$WORD"; sleep 60'))["id"])
    machine.wait(job_id, "RUNNING")
    objects = site.all_objects()
    events = f"/api/v1/namespaces/{site.namespace}/events"
    objects += site.admin.request("GET", events)["items"]
    held = [one for one in objects if _holds(one, WORD) or _holds(one, "testing-secret-key")]
    assert {one["metadata"]["name"] for one in held} == {f"prefect-bt-{job_id}-0"}
    assert all(_data_of(one) for one in held)
    machine.run("stop", "--job-id", job_id)
    machine.wait(job_id, "STOPPED")
    assert WORD not in machine.logs(job_id)
    machine.nothing_left_in_cluster(job_id)


def _holds(one: dict[str, Any], word: str) -> bool:
    return word in json.dumps(one) or any(word in text for text in _data_of(one))


def _data_of(one: dict[str, Any]) -> Iterator[str]:
    return iter([base64.b64decode(text).decode() for text in one.get("data", {}).values()])


@pytest.mark.extended
def test_a_deleted_pod_is_an_infrastructure_failure(
    machine: ClusterMachine, site: ClusterSite
) -> None:
    script = f"""{SAVE}
    echo "attempt $BT_RETRY_COUNT finds $(newest)"
    save $(newest)
    [ $BT_RETRY_COUNT = 1 ] || sleep 600
    """
    job_id = str(machine.push(machine.job_folder(script, nodes=2))["id"])
    until(lambda: machine.checkpoints(job_id), seconds=30, what="a checkpoint")
    site.delete(f"pods/{site.find_pod(job_id, 0, 1)}", gracePeriodSeconds=5)
    machine.wait(job_id, "COMPLETED", seconds=200)
    first, second = machine.view(job_id)["attempts"]
    assert (first["failure"], first["cause"], second["failure"]) == (
        "infrastructure",
        "pod_deleted",
        None,
    )
    assert "its pod was deleted" in first["message"]
    assert "attempt 1 finds 1" in machine.logs(job_id)
    machine.nothing_left_in_cluster(job_id)


@pytest.mark.extended
def test_a_job_that_is_stopped_before_it_starts(machine: ClusterMachine, site: ClusterSite) -> None:
    config = machine.job_folder("echo never", image="localhost/nobody/has:1")
    job_id = str(machine.push(config)["id"])
    site.find_pod(job_id, 0, 0)
    until(
        lambda: "localhost/nobody/has:1" in machine.logs(job_id).partition("waiting for")[2],
        seconds=30,
        what="what it waits for",
    )
    machine.run("stop", "--job-id", job_id)
    machine.wait(job_id, "STOPPED")
    machine.nothing_left_in_cluster(job_id)


def test_weights_are_there_before_the_commands(machine: ClusterMachine, site: ClusterSite) -> None:
    from prefect_bt.object_store import open_store

    open_store("s3://jobs/models").put("tiny/config.json", b'{"layers": 1}')
    weights = {"source": "s3://jobs/models/tiny", "mount_location": "/models/tiny"}
    script = "cat /models/tiny/config.json; touch /models/tiny/x || echo read-only"
    job = machine.completed(machine.job_folder(script, weights=(weights,)))
    log = machine.logs(job["id"])
    assert '{"layers": 1}' in log
    assert "read-only" in log
    machine.nothing_left_in_cluster(job["id"])


@pytest.mark.extended
def test_the_flow_is_killed_and_the_pods_go_on(machine: ClusterMachine) -> None:
    script = f"{SAVE}\nsave 1; i=0; while [ $i -lt 120 ]; do i=$((i+1)); sleep 0.1; done; save 2"
    job_id = str(machine.push(machine.job_folder(script))["id"])
    until(lambda: machine.checkpoints(job_id), seconds=30, what="a checkpoint")
    for process in machine.processes(job_id):
        process.kill()
    until(lambda: not is_owned(machine.state_dir, job_id), seconds=30, what="no owner")
    machine.run("view", "--job-id", job_id)
    machine.wait(job_id, "COMPLETED", seconds=200)
    attempts = machine.view(job_id)["attempts"]
    assert len(attempts) == 1, (attempts, machine.logs(job_id))
    assert machine.checkpoints(job_id) == ["checkpoint-1", "checkpoint-2"]
    machine.nothing_left_in_cluster(job_id)


def test_gc_finds_what_is_left_in_the_cluster(machine: ClusterMachine, site: ClusterSite) -> None:
    job_id = str(machine.completed(machine.job_folder("true"))["id"])
    name = f"prefect-bt-{job_id}-7"
    labels = {
        "app.kubernetes.io/managed-by": "prefect-bt",
        LABEL_JOB: job_id,
        LABEL_STORE: store_label(machine.ledger.store.url),
    }
    pod = {"restartPolicy": "Never", "containers": [{"name": "x", "image": site.image}]}
    job = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"suspend": True, "template": {"spec": pod}},
    }
    jobs = f"/apis/batch/v1/namespaces/{site.namespace}/jobs"
    site.admin.request("POST", jobs, body={"apiVersion": "batch/v1", "kind": "Job", **job})
    found = json.loads(machine.run("gc", "--dry-run", "-o", "json").stdout)
    assert name in json.dumps(found)
    machine.run("gc", "--yes")
    machine.nothing_left_in_cluster(job_id)
