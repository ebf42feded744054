"""A whole job in a cluster: one gang that is evicted, and completes from its checkpoint.

It passes through everything that a job uses in a cluster. Other endings are in test_jobs.py and
test_faults.py; as recorded objects, in tests/substrates/kubernetes.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from prefect_bt.object_store import open_store
from prefect_bt.substrates.kubernetes.names import LABEL_JOB, LABEL_STORE, store_label
from tests.beside import complete_beside
from tests.e2e.conftest import until

from .cluster_site import SAVE, WORD, ClusterMachine, ClusterSite

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SCRIPT = f"""{SAVE}
echo "rank $BT_NODE_RANK of $BT_GROUP_SIZE, attempt $BT_RETRY_COUNT, in $(pwd), $WORD"
echo "attempt $BT_RETRY_COUNT finds $(newest)"
echo "into the pipe" >&2
cat /models/tiny/config.json; touch /models/tiny/x || echo read-only
if [ $BT_NODE_RANK = 0 ]; then
  echo "from the leader" | nc -l -p $BT_LEADER_PORT
else
  until nc $BT_LEADER_ADDR $BT_LEADER_PORT > heard; do sleep 0.1; done
  cat heard
fi
save $BT_RETRY_COUNT
[ $BT_RETRY_COUNT = 1 ] || sleep 600
"""
"""The first attempt writes checkpoint-0 and does not end; the second writes checkpoint-1."""


def test_an_evicted_gang_completes_from_its_checkpoint(
    machine: ClusterMachine, site: ClusterSite
) -> None:
    open_store("s3://jobs/models").put("tiny/config.json", b'{"layers": 1}')
    weights = {"source": "s3://jobs/models/tiny", "mount_location": "/models/tiny"}

    def evict(job_id: str) -> None:
        until(lambda: machine.checkpoints(job_id), seconds=60, what="a checkpoint")
        assert_secrets_are_in_the_secret_alone(site, job_id)
        if site.cluster is not None:  # the API server of KUBECONFIG is not ours to restart
            site.cluster.restart_api(1)
        assert len(machine.ledger.list_attempts(job_id)) == 1
        with site.drained(site.node_of(site.find_pod(job_id, 0, 1))):
            site.find_pod(job_id, 1, 0)

    config = machine.job_folder(SCRIPT, nodes=2, weights=(weights,))
    job = complete_beside(machine, config, evict)
    assert job["substrate"] == "kubernetes"
    first, second = job["attempts"]
    assert (first["failure"], first["cause"]) == ("infrastructure", "evicted")
    assert second["failure"] is None
    log = machine.logs(job["id"])
    for line in (
        "(rank-0) rank 0 of 2, attempt 0, in /b10/workspace, ********",
        '{"layers": 1}',
        "read-only",
        "into the pipe",
        "(rank-1) from the leader",
        "(rank-1) attempt 1 finds 1",
    ):
        assert line in log
    assert WORD not in log
    assert machine.checkpoints(job["id"]) == ["checkpoint-0", "checkpoint-1"]
    machine.nothing_left_in_cluster(job["id"])
    assert_gc_removes_what_is_left(machine, site, job["id"])


def assert_secrets_are_in_the_secret_alone(site: ClusterSite, job_id: str) -> None:
    objects = site.all_objects()
    events = f"/api/v1/namespaces/{site.namespace}/events"
    objects += site.admin.request("GET", events)["items"]
    held = [one for one in objects if holds(one, WORD) or holds(one, "testing-secret-key")]
    assert {one["metadata"]["name"] for one in held} == {f"prefect-bt-{job_id}-0"}
    assert all(data_of(one) for one in held)


def holds(one: dict[str, Any], word: str) -> bool:
    return word in json.dumps(one) or any(word in text for text in data_of(one))


def data_of(one: dict[str, Any]) -> list[str]:
    return [base64.b64decode(text).decode() for text in one.get("data", {}).values()]


def assert_gc_removes_what_is_left(machine: ClusterMachine, site: ClusterSite, job_id: str) -> None:
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
