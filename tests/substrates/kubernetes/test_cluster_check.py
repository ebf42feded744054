"""The checks of a cluster that need no pod, by the answers of its API server."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.substrates.checks.cluster import check_cluster
from prefect_bt.substrates.kubernetes.client import ClusterClient
from prefect_bt.substrates.protocol import CheckResult, CheckStatus

from .api_stub import ApiStub, answer
from .test_pod_hosts import node, serve

PASSED, FAILED, SKIPPED = CheckStatus.PASSED, CheckStatus.FAILED, CheckStatus.SKIPPED
REVIEW = "POST selfsubjectaccessreviews"


def allow(api: ApiStub, *, without: tuple[str, ...] = ()) -> None:
    """Answer each review of a right: yes, except for `without` (`create jobs`)."""

    def give(handler: BaseHTTPRequestHandler) -> None:
        asked: dict[str, Any] = api.requests[-1].body["spec"]["resourceAttributes"]
        allowed = f"{asked['verb']} {asked['resource']}" not in without
        answer(201, {"status": {"allowed": allowed}})(handler)

    api.on(REVIEW, give)


def check(api: ApiStub, client: ClusterClient, **settings: Any) -> dict[str, CheckResult]:
    api.on("GET version", answer(200, {"gitVersion": "v1.36.2"}))
    return {one.name: one for one in check_cluster(client, ClusterSettings(**settings))}


def test_a_cluster_that_can_run_jobs(api: ApiStub, client: ClusterClient) -> None:
    allow(api)
    serve(api, [node("a"), node("b", gpus=8, labels={"nvidia.com/gpu.product": "H100"})], [])
    results = check(api, client)
    assert {name: result.status for name, result in results.items()} == {
        "API server": PASSED,
        "Rights": PASSED,
        "Machines": PASSED,
        "GPUs": PASSED,
    }
    assert results["API server"].detail.startswith("v1.36.2 at http://127.0.0.1:")
    assert results["Machines"].detail == "2 for pods, with 31.8 CPUs and 128 GiB"
    assert results["GPUs"].detail == "8 x H100"


@pytest.mark.parametrize("storage_class", ["", "nfs"])
def test_missing_rights_are_named_with_the_cure(
    api: ApiStub, client: ClusterClient, storage_class: str
) -> None:
    allow(api, without=("patch jobs", "list events", "create persistentvolumeclaims"))
    serve(api, [node("a")], [])
    rights = check(api, client, cache_storage_class=storage_class)["Rights"]
    assert rights.status is FAILED
    claims = ", create persistentvolumeclaims" if storage_class else ""
    assert rights.detail == f"the user may not patch jobs, list events{claims} in rec."
    assert "rbac.yaml" in rights.next_step


def test_a_user_who_may_not_list_machines_can_run_jobs(api: ApiStub, client: ClusterClient) -> None:
    allow(api, without=("list nodes",))
    assert check(api, client)["Machines"].status is SKIPPED


def test_machines_that_no_pod_may_use(api: ApiStub, client: ClusterClient) -> None:
    allow(api)
    serve(api, [node("a", unschedulable=True)], [])
    machines = check(api, client)["Machines"]
    assert machines.status is FAILED
    assert "tolerations" in machines.next_step
