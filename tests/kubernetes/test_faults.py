"""Whole jobs in a cluster whose API, quota or nodes fail them; nothing stays in the namespace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import until

from .cluster_site import SAVE, ClusterMachine, ClusterSite

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SCRIPT = f"""{SAVE}
echo "attempt $BT_RETRY_COUNT finds $(newest)"
save $(newest)
[ $BT_RETRY_COUNT = 1 ] || sleep 600
"""
"""The first attempt writes checkpoint-0 and does not end; the second writes checkpoint-1."""


@pytest.fixture
def quota(site: ClusterSite) -> Iterator[str]:
    """The name of a quota that lets one pod be in the namespace."""
    path, name = f"/api/v1/namespaces/{site.namespace}/resourcequotas", "one-pod"
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}}
    site.admin.request("POST", path, body={**body, "spec": {"hard": {"pods": "1"}}})
    yield name
    site.delete(f"resourcequotas/{name}")


@pytest.mark.extended
def test_a_job_beyond_the_quota_is_not_deployed(
    machine: ClusterMachine, site: ClusterSite, quota: str
) -> None:
    settings = site.settings(patience_seconds=10.0).model_dump_json()
    config = machine.job_folder("sleep 600", nodes=2)
    job_id = str(machine.push(config, PREFECT_BT_KUBERNETES=settings)["id"])
    machine.wait(job_id, "DEPLOY_FAILED", seconds=60)
    job = machine.view(job_id)
    assert job["attempts"][-1]["cause"] == "quota_exceeded"
    assert f"exceeded quota: {quota}" in job["error_message"]
    machine.nothing_left_in_cluster(job_id)


@pytest.mark.extended
def test_a_lost_node(machine: ClusterMachine, site: ClusterSite) -> None:
    if site.cluster is None:
        pytest.skip("a node of the cluster of KUBECONFIG cannot be made to fail")
    job_id = str(machine.push(machine.job_folder(SCRIPT, nodes=2))["id"])
    until(lambda: machine.checkpoints(job_id), seconds=30, what="a checkpoint")
    site.cluster.lose_node(site.node_of(site.find_pod(job_id, 0, 1)))
    assert_completed_by_second_attempt(machine, job_id, "node_lost")


def assert_completed_by_second_attempt(machine: ClusterMachine, job_id: str, cause: str) -> None:
    """The first attempt failed by the infrastructure, and its checkpoint was found."""
    machine.wait(job_id, "COMPLETED", seconds=200)
    first, second = machine.view(job_id)["attempts"]
    assert (first["failure"], first["cause"]) == ("infrastructure", cause)
    assert second["failure"] is None
    assert "attempt 1 finds 1" in machine.logs(job_id)
    assert machine.checkpoints(job_id) == ["checkpoint-0", "checkpoint-1"]
    machine.nothing_left_in_cluster(job_id)
