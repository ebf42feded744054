"""Pods that cannot run, compared with the recordings of a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.node_agent.rig import wait_until

from .client import Client
from .recordings import recorded
from .resources import Obj

if TYPE_CHECKING:
    from .cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.extended]
"""The gate reads the recordings themselves (tests/substrates/kubernetes/test_pod_states.py)."""
PODS = "/api/v1/namespaces/rec/pods"


@pytest.fixture(scope="module")
def troubled(cluster: Cluster, base_image: str) -> Iterator[Cluster]:
    """The cluster with the pods of the recording."""
    for name, spec in troubles(base_image).items():
        cluster.create("v1", "Pod", {"metadata": {"name": name}, "spec": spec}, "rec")
    yield cluster
    client = Client(cluster.server)
    for name in troubles(base_image):
        client.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")


def troubles(image: str) -> dict[str, Obj]:
    none = "127.0.0.1:1/nothing:1"
    volume = {"name": "v", "secret": {"secretName": "nosecret"}}
    oom: Obj = {"resources": {"limits": {"memory": "32Mi"}}}
    gpu: Obj = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    grow = "x=a; while true; do x=$x$x; done"
    init = {"name": "i", "image": image, "command": ["sh", "-c", "exit 4"]}

    def pod(command: str = "sleep 1000", container: Obj | None = None, **spec: Any) -> Obj:
        main: Obj = {"name": "a", "image": image, "command": ["sh", "-c", command]}
        fixed = {"restartPolicy": "Never", "containers": [{**main, **(container or {})}]}
        return {**fixed, "terminationGracePeriodSeconds": 2, **spec}

    return {
        "gpu": pod(container=gpu),
        "selector": pod(nodeSelector={"gpu": "h100"}),
        "nocmd": pod(container={"command": ["/nothing"]}),
        "never": pod(container={"image": "local/nothing:1", "imagePullPolicy": "Never"}),
        "pull": pod(container={"image": none}),
        "novolume": pod(
            volumes=[volume], container={"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
        ),
        "oom": pod(grow, oom),
        "init": pod(initContainers=[init]),
        "ok": pod("echo hi"),
    }


@pytest.mark.parametrize("name", recorded("pods")["event_reasons"])
def test_a_pod_in_trouble_looks_like_a_real_one(troubled: Cluster, name: str) -> None:
    recording = recorded("pods")
    real = recording["statuses"][name]
    wanted = shape(real)
    client = Client(troubled.server)
    wait_until(
        lambda: shape(client.get(f"{PODS}/{name}")["status"])[:3] == wanted[:3],
        f"{client.get(f'{PODS}/{name}')['status']}",
    )
    status = client.get(f"{PODS}/{name}")["status"]
    assert shape(status) == wanted
    assert {each for each in real if each not in OURS_LACK} <= status.keys()
    wanted_reasons = {*recording["event_reasons"][name]}
    wait_until(lambda: event_reasons(client, name) >= wanted_reasons, f"{wanted_reasons}")


def event_reasons(client: Client, name: str) -> set[str]:
    events = client.get("/api/v1/namespaces/rec/events")["items"]
    return {each["reason"] for each in events if each["involvedObject"]["name"] == name}


OURS_LACK = ("observedGeneration", "resources", "allocatedResources")


def shape(status: Obj) -> tuple[Any, ...]:
    """Return the parts that are compared: phase, states, readiness, conditions."""
    states: list[Any] = []
    for each in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        ((kind, state),) = each["state"].items()
        states.append((each["name"], kind, state.get("reason"), state.get("exitCode")))
    kept = [
        (each["type"], each["status"], each.get("reason"), each.get("message"))
        for each in status.get("conditions", [])
    ]
    ready = [each["ready"] for each in status.get("containerStatuses", [])]
    return status["phase"], states, ready, sorted(kept, key=str), status["qosClass"]
