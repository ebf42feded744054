"""Nodes that pods do not fit on, faults of nodes and of the API."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")


from tests.node_agent.rig import wait_until

from .client import MERGE, Client, Recorder
from .cluster import Cluster
from .resources import NODES, PODS, Obj
from .store import condition

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def faulty(engine: docker.APIClient, base_image: str, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(engine, base_image, tmp_path, nodes={"node-1": {}, "small": {"cpu": "1m"}})
    made.start()
    made.add_namespace("rec")
    yield made
    made.close()


def start(cluster: Cluster, name: str, image: str) -> None:
    container = {"name": "a", "image": image, "command": ["sleep", "100"]}
    container["resources"] = {"requests": {"cpu": "10m"}}
    body = {"containers": [container], "restartPolicy": "Never"}
    body["terminationGracePeriodSeconds"] = 1
    cluster.create("v1", "Pod", {"metadata": {"name": name}, "spec": body}, "rec")


def pod(cluster: Cluster, name: str) -> Obj:
    return cluster.store.get(PODS, "rec", name)


def wait_running(cluster: Cluster, name: str) -> None:
    wait_until(lambda: pod(cluster, name)["status"]["phase"] == "Running")


@pytest.mark.extended
def test_a_cordoned_node_and_one_without_room_get_no_pod(faulty: Cluster, base_image: str) -> None:
    client, node = Client(faulty.server), "/api/v1/nodes/node-1"
    client.call("PATCH", node, {"spec": {"unschedulable": True}}, MERGE)
    start(faulty, "p", base_image)
    time.sleep(1.0)
    assert "nodeName" not in pod(faulty, "p")["spec"]
    client.call("PATCH", node, {"spec": {"unschedulable": None}}, MERGE)
    wait_running(faulty, "p")
    assert pod(faulty, "p")["spec"]["nodeName"] == "node-1"


@pytest.mark.extended
def test_a_lost_node(faulty: Cluster, base_image: str) -> None:
    start(faulty, "p", base_image)
    wait_running(faulty, "p")
    faulty.lose_node("node-1", after=0.1)
    assert faulty.store.get(NODES, "", "node-1")["spec"]["unschedulable"]
    lost = pod(faulty, "p")
    assert condition(lost, "DisruptionTarget")["reason"] == "DeletionByTaintManager"
    assert condition(lost, "Ready")["status"] == "False"
    time.sleep(1.5)
    assert pod(faulty, "p")["status"]["phase"] == "Running", "its kubelet reports no end"
    faulty.server.verbs.delete(PODS, "rec", "p", {"gracePeriodSeconds": 0})
    assert faulty.store.all(PODS, "rec") == []


@pytest.mark.extended
def test_a_restart_of_the_api_ends_watches(faulty: Cluster) -> None:
    client, maps = Client(faulty.server), "/api/v1/namespaces/rec/configmaps"
    watch = Recorder(client, f"{maps}?watch=1&timeoutSeconds=60")
    faulty.create("v1", "ConfigMap", {"metadata": {"name": "c"}}, "rec")
    wait_until(lambda: watch.events, "the watch did not begin")
    faulty.restart_api(0.1)
    wait_until(lambda: watch.over, "the watch did not end")
    assert [each["metadata"]["name"] for each in client.get(maps)["items"]] == ["c"]
