"""Names, volumes, environment, users and the end of a pod's containers."""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.node_agent.rig import wait_until

from .client import Client
from .recordings import recorded
from .resources import Obj

if TYPE_CHECKING:
    from .cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.extended]
"""The gate runs these functions of the cluster below the jobs of tests/kubernetes."""
PODS = "/api/v1/namespaces/rec/pods"
Run = Callable[..., str]


class Pods:
    def __init__(self, cluster: Cluster, image: str) -> None:
        self.cluster, self.image = cluster, image
        self.client = Client(cluster.server)

    def start(self, name: str, command: str, *, meta: Any = None, main: Any = None, **spec: Any):
        container = {"name": "a", "image": self.image, "command": ["sh", "-c", command]}
        body: Obj = {"containers": [{**container, **(main or {})}], "restartPolicy": "Never"}
        body |= {"terminationGracePeriodSeconds": 1, **spec}
        self.cluster.create(
            "v1", "Pod", {"metadata": {"name": name, **(meta or {})}, "spec": body}, "rec"
        )

    def run(self, name: str, command: str, **given: Any) -> list[str]:
        """Return the lines of the pod's output, once it has ended."""
        self.start(name, command, **given)
        wait_until(lambda: self.phase(name) in ("Succeeded", "Failed"), f"{name} does not end")
        return self.log(name).splitlines()

    def log(self, name: str) -> str:
        """Return the output of the pod's container."""
        (state,) = self.status(name)["containerStatuses"]
        engine = self.cluster.kubelet.client
        return engine.logs(state["containerID"].removeprefix("docker://")).decode()

    def status(self, name: str) -> Obj:
        return self.client.get(f"{PODS}/{name}")["status"]

    def phase(self, name: str) -> str:
        return self.status(name)["phase"]


@pytest.fixture
def pods(cluster: Cluster, base_image: str) -> Pods:
    return Pods(cluster, base_image)


def test_pods_find_each_other_by_the_names_of_a_headless_service(pods: Pods) -> None:
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"gang": "g"}}
    pods.cluster.create("v1", "Service", {"metadata": {"name": "gang"}, "spec": spec}, "rec")
    labels = {"labels": {"gang": "g"}}
    for name in ("g-0", "g-1"):
        pods.start(name, "nc -l -p 5000 -e echo $HOSTNAME", meta=labels, subdomain="gang")
    ask = "until nc {0} 5000 2>/dev/null | grep g-; do sleep 0.1; done"
    full = "g-1.gang.rec.svc.cluster.local"
    command = f"{ask.format('g-0.gang')}; {ask.format(full)}"
    assert pods.run("asks", command) == ["g-0", "g-1"]


def test_volumes(pods: Pods) -> None:
    data = {"key": base64.b64encode(b"value").decode()}
    pods.cluster.create("v1", "Secret", {"metadata": {"name": "s"}, "data": data}, "rec")
    volumes: list[Obj] = [
        {"name": "empty", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "secret", "secret": {"secretName": "s", "defaultMode": 0o400}},
        {"name": "closed", "emptyDir": {}},
    ]
    mounts: list[Obj] = [
        {"name": each["name"], "mountPath": f"/v/{each['name']}"} for each in volumes
    ]
    mounts[0]["subPath"] = "deep/folder"
    mounts[1]["mountPath"] = "/dev/shm"
    mounts[3]["readOnly"] = True
    command = (
        "cat /v/secret/key; echo; stat -c %a /v/secret/key; echo x > /v/empty/x && echo written;"
        "echo x > /dev/shm/x; (echo x > /v/closed/x) 2>/dev/null || echo refused"
    )
    spec: Obj = {"volumes": volumes, "main": {"volumeMounts": mounts}}
    assert pods.run("volumes", command, **spec) == ["value", "400", "written", "refused"]
    assert pods.run("again", "ls /v/empty", **spec) == []


def test_users_groups_and_privileges(pods: Pods) -> None:
    security = {"runAsUser": 1000, "runAsGroup": 1001, "runAsNonRoot": True, "fsGroup": 2000}
    own: Obj = {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False}
    own["capabilities"] = {"drop": ["ALL"]}
    volume: Obj = {"name": "v", "emptyDir": {}}
    main = {"securityContext": own, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    command = (
        "id -u; id -g; id -G; stat -c '%g %a' /v; touch /x 2>/dev/null || echo refused;"
        "grep -E '^(CapBnd|NoNewPrivs)' /proc/self/status"
    )
    lines = pods.run("user", command, main=main, volumes=[volume], securityContext=security)
    assert lines[:5] == ["1000", "1001", "1001 2000", "2000 2777", "refused"]
    assert [line.split()[1] for line in lines[5:]] == ["0000000000000000", "1"]


def test_the_environment(pods: Pods) -> None:
    env = [
        {"name": "PLAIN", "value": "1"},
        {"name": "MADE", "value": "$(PLAIN)-$$(PLAIN)"},
        {"name": "TEAM", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['a/b']"}}},
    ]
    meta = {"annotations": {"a/b": "red"}}
    main = {"env": env, "workingDir": "/tmp"}
    lines = pods.run("env", "echo $PLAIN $MADE $TEAM; pwd", meta=meta, main=main)
    assert lines == ["1 1-$(PLAIN) red", "/tmp"]


def test_two_containers_share_the_network(pods: Pods) -> None:
    second = {"name": "b", "image": pods.image, "command": ["nc", "-l", "-p", "81"]}
    wait = "until nc 127.0.0.1 81; do sleep 0.1; done"
    first = {**second, "name": "a", "command": ["sh", "-c", wait]}
    pods.start("two", "", containers=[first, second])
    wait_until(lambda: pods.phase("two") == "Succeeded")


def test_an_image_that_cannot_be_pulled_and_an_init_container_that_fails(pods: Pods) -> None:
    pods.start("pull", "true", main={"image": "127.0.0.1:1/nothing:1"})
    init = {"name": "i", "image": pods.image, "command": ["sh", "-c", "exit 4"]}
    pods.start("init", "true", initContainers=[init])
    for name in ("pull", "init"):
        real = states(recorded("pods")["statuses"][name])
        wait_until(lambda name=name, real=real: states(pods.status(name)) == real)


def states(status: Obj) -> tuple[str, list[str], list[int]]:
    """Return the phase, the kinds of the containers' states, and their exit codes."""
    containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    found = [(kind, state) for one in containers for kind, state in one["state"].items()]
    codes = [state["exitCode"] for _, state in found if "exitCode" in state]
    return status["phase"], [kind for kind, _ in found], codes


@pytest.mark.parametrize(("trap", "code"), [("trap 'exit 7' TERM", 7), ("trap '' TERM", 137)])
def test_a_deleted_pod_has_its_grace(pods: Pods, trap: str, code: int) -> None:
    name = f"graceful-{code}"
    pods.start(name, f"{trap}; echo ready; while :; do sleep 0.1; done")
    wait_until(lambda: pods.phase(name) == "Running")
    wait_until(lambda: "ready" in pods.log(name))
    selector = f"fieldSelector=metadata.name%3D{name}&timeoutSeconds=600"
    events = pods.client.watch(f"{PODS}?watch=1&{selector}")
    first = next(events)
    answer = pods.client.call("DELETE", f"{PODS}/{name}")[1]
    assert answer["metadata"]["deletionGracePeriodSeconds"] == 1
    last = next(event for event in events if event["type"] == "DELETED")
    assert first["type"] == "ADDED"
    (state,) = last["object"]["status"]["containerStatuses"]
    assert state["state"]["terminated"]["exitCode"] == code


def test_pods_reach_this_machine(pods: Pods) -> None:
    with socket.create_server((pods.cluster.gateway, 0)) as server:
        host, port = server.getsockname()[:2]
        pods.start("calls", f"echo hello | nc {host} {port}")
        server.settimeout(600)
        connection, _ = server.accept()
        with connection:
            assert connection.recv(100) == b"hello\n"
