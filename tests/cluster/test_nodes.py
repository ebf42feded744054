"""Nodes that pods do not fit on, faults of nodes and of the API, and the package kubernetes."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")


from tests.node_agent.rig import wait_until

from .client import MERGE, Client, Recorder
from .cluster import Cluster
from .resources import NODES, PODS, Obj
from .store import condition

pytestmark = [pytest.mark.integration, pytest.mark.slow]
GPUS = {
    "labels": {"gpu": "h100"},
    "taints": [{"key": "nvidia.com/gpu", "value": "yes", "effect": "NoSchedule"}],
    "allocatable": {"nvidia.com/gpu": "8"},
}


@pytest.fixture
def faulty(engine: docker.APIClient, base_image: str, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(engine, base_image, tmp_path, nodes={"node-1": {}, "gpus": GPUS})
    made.start()
    made.add_namespace("rec")
    yield made
    made.close()


def start(cluster: Cluster, name: str, image: str, **spec: Any) -> None:
    container = {"name": "a", "image": image, "command": ["sleep", "100"]}
    container["resources"] = spec.pop("resources", {})
    body = {"containers": [container], "restartPolicy": "Never", **spec}
    body["terminationGracePeriodSeconds"] = 1
    cluster.create("v1", "Pod", {"metadata": {"name": name}, "spec": body}, "rec")


def pod(cluster: Cluster, name: str) -> Obj:
    return cluster.store.get(PODS, "rec", name)


def wait_running(cluster: Cluster, name: str) -> None:
    wait_until(lambda: pod(cluster, name)["status"]["phase"] == "Running")


@pytest.mark.extended
def test_nodes_with_labels_taints_and_gpus(faulty: Cluster, base_image: str) -> None:
    gpu: Obj = {"resources": {"limits": {"nvidia.com/gpu": "5"}}}
    start(faulty, "no-toleration", base_image, **gpu)
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    for name in ("first", "second"):
        more = {"tolerations": tolerations, "nodeSelector": {"gpu": "h100"}}
        start(faulty, name, base_image, **gpu, **more)
        wait_until(lambda name=name: condition(pod(faulty, name), "PodScheduled"))
    wait_running(faulty, "first")
    assert pod(faulty, "first")["spec"]["nodeName"] == "gpus"
    said = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's"
    assert condition(pod(faulty, "second"), "PodScheduled")["message"].startswith(said)
    said = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated"
    wait_until(lambda: condition(pod(faulty, "no-toleration"), "PodScheduled"))
    assert condition(pod(faulty, "no-toleration"), "PodScheduled")["message"].startswith(said)
    faulty.server.verbs.delete(PODS, "rec", "first", {})
    wait_running(faulty, "second")


@pytest.mark.extended
def test_a_cordoned_node(faulty: Cluster, base_image: str) -> None:
    client, node = Client(faulty.server), "/api/v1/nodes/node-1"
    client.call("PATCH", node, {"spec": {"unschedulable": True}}, MERGE)
    start(faulty, "p", base_image)
    wait_until(lambda: condition(pod(faulty, "p"), "PodScheduled"))
    assert "1 node(s) were unschedulable" in condition(pod(faulty, "p"), "PodScheduled")["message"]
    client.call("PATCH", node, {"spec": {"unschedulable": None}}, MERGE)
    wait_running(faulty, "p")


@pytest.mark.extended
def test_a_lost_node(faulty: Cluster, base_image: str) -> None:
    start(faulty, "p", base_image)
    wait_running(faulty, "p")
    faulty.lose_node("node-1", after=0.1)
    assert condition(faulty.store.get(NODES, "", "node-1"), "Ready")["status"] == "Unknown"
    lost = pod(faulty, "p")
    assert condition(lost, "DisruptionTarget")["reason"] == "DeletionByTaintManager"
    assert condition(lost, "Ready")["status"] == "False"
    time.sleep(1.5)
    assert pod(faulty, "p")["status"]["phase"] == "Running", "its kubelet reports no end"
    faulty.server.verbs.delete(PODS, "rec", "p", {"gracePeriodSeconds": 0})
    assert faulty.store.all(PODS, "rec") == []


@pytest.mark.extended
def test_a_restart_of_the_api_ends_watches(faulty: Cluster) -> None:
    client, accounts = Client(faulty.server), "/api/v1/namespaces/rec/serviceaccounts"
    watch = Recorder(client, f"{accounts}?watch=1&timeoutSeconds=60")
    wait_until(lambda: watch.events, "the watch did not begin")
    faulty.restart_api(0.1)
    wait_until(lambda: watch.over, "the watch did not end")
    assert [each["metadata"]["name"] for each in client.get(accounts)["items"]] == ["default"]


def test_the_package_kubernetes_talks_to_it(faulty: Cluster) -> None:
    client: Any = importlib.import_module("kubernetes.client")
    config: Any = importlib.import_module("kubernetes.config")
    manifest = """
        apiVersion: rbac.authorization.k8s.io/v1
        kind: Role
        metadata: {name: reader, namespace: rec}
        rules: [{apiGroups: [""], resources: [pods], verbs: [list]}]
        ---
        apiVersion: rbac.authorization.k8s.io/v1
        kind: RoleBinding
        metadata: {name: reader, namespace: rec}
        subjects: [{kind: User, name: reader, apiGroup: rbac.authorization.k8s.io}]
        roleRef: {kind: Role, name: reader, apiGroup: rbac.authorization.k8s.io}
    """
    faulty.apply(manifest.replace("\n        ", "\n"))
    path = faulty.kubeconfig_for("reader", "rec")
    core = client.CoreV1Api(config.new_client_from_config(str(path)))
    assert core.list_namespaced_pod("rec").items == []
    with pytest.raises(client.ApiException, match="403"):
        core.list_node()
    admin = client.CoreV1Api(config.new_client_from_config(str(faulty.kubeconfig)))
    names = [node.metadata.name for node in admin.list_node().items]
    assert names == ["gpus", "node-1"]
