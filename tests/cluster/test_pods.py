"""Names, volumes, environment, users, limits and the end of a pod's containers."""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.node_agent.rig import wait_until

from .client import Client
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
        return self.client.get(f"{PODS}/{name}/log").splitlines()

    def status(self, name: str) -> Obj:
        return self.client.get(f"{PODS}/{name}")["status"]

    def phase(self, name: str) -> str:
        return self.status(name)["phase"]

    def is_gone(self, name: str) -> bool:
        return self.client.call("GET", f"{PODS}/{name}")[0] == 404


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


def test_volumes(pods: Pods, tmp_path: Any) -> None:
    data = {"key": base64.b64encode(b"value").decode()}
    pods.cluster.create("v1", "Secret", {"metadata": {"name": "s"}, "data": data}, "rec")
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    body = {"metadata": {"name": "claim"}, "spec": claim}
    pods.cluster.create("v1", "PersistentVolumeClaim", body, "rec")
    volumes: list[Obj] = [
        {"name": "empty", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "secret", "secret": {"secretName": "s", "defaultMode": 0o400}},
        {"name": "host", "hostPath": {"path": f"{tmp_path}/new", "type": "DirectoryOrCreate"}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "claim"}},
    ]
    mounts: list[Obj] = [
        {"name": each["name"], "mountPath": f"/v/{each['name']}"} for each in volumes
    ]
    mounts[0]["subPath"] = "deep/folder"
    mounts[3]["readOnly"] = True
    mounts[1]["mountPath"] = "/dev/shm"
    command = (
        "cat /v/secret/key; echo; stat -c %a /v/secret/key; echo x > /v/empty/x && echo written;"
        "echo kept > /v/claim/x; echo x > /dev/shm/x;"
        "(echo x > /v/host/x) 2>/dev/null || echo refused"
    )
    spec: Obj = {"volumes": volumes, "main": {"volumeMounts": mounts}}
    told = pods.run("volumes", command, **spec)
    assert [told[0], told[1], told[2], told[-1]] == ["value", "400", "written", "refused"]
    assert pods.run("again", "cat /v/claim/x; ls /v/empty", **spec) == ["kept"]


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
    told = pods.run("user", command, main=main, volumes=[volume], securityContext=security)
    assert told[:5] == ["1000", "1001", "1001 2000", "2000 2777", "refused"]
    assert [line.split()[1] for line in told[5:]] == ["0000000000000000", "1"]


def test_the_environment(pods: Pods) -> None:
    env = [
        {"name": "PLAIN", "value": "1"},
        {"name": "MADE", "value": "$(PLAIN)-$$(PLAIN)"},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    command = "echo $PLAIN $MADE $POD; echo $IP; pwd"
    told = pods.run("env", command, main={"env": env, "workingDir": "/tmp"})
    assert told == ["1 1-$(PLAIN) env", pods.status("env")["podIP"], "/tmp"]


def test_a_secret_that_comes_late(pods: Pods) -> None:
    volume = {"name": "v", "secret": {"secretName": "late"}}
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    pods.start("waits", "cat /v/key", main=mount, volumes=[volume])
    selector = "fieldSelector=involvedObject.name%3Dwaits"
    events = f"/api/v1/namespaces/rec/events?{selector}"

    def is_told() -> bool:
        return "FailedMount" in [each["reason"] for each in pods.client.get(events)["items"]]

    wait_until(is_told)
    assert pods.phase("waits") == "Pending"
    secret = {"metadata": {"name": "late"}, "stringData": {"key": "here"}}
    pods.cluster.create("v1", "Secret", secret, "rec")
    wait_until(lambda: pods.phase("waits") == "Succeeded")
    assert pods.client.get(f"{PODS}/waits/log") == "here"


def test_two_containers_share_the_network_and_have_logs_of_their_own(pods: Pods) -> None:
    second = {"name": "b", "image": pods.image, "command": ["sh", "-c", "seq 5; nc -l -p 81"]}
    wait = "until nc 127.0.0.1 81; do sleep 0.1; done; echo done"
    first = {**second, "name": "a", "command": ["sh", "-c", wait]}
    pods.start("two", "", containers=[first, second])
    wait_until(lambda: pods.phase("two") == "Succeeded")
    assert pods.client.get(f"{PODS}/two/log?container=b&tailLines=2").split() == ["4", "5"]
    assert pods.client.get(f"{PODS}/two/log?container=a").split()[-1] == "done"


@pytest.mark.parametrize(("trap", "code"), [("trap 'exit 7' TERM", 7), ("trap '' TERM", 137)])
def test_a_deleted_pod_has_its_grace(pods: Pods, trap: str, code: int) -> None:
    name = f"graceful-{code}"
    pods.start(name, f"{trap}; echo ready; while :; do sleep 0.1; done")
    wait_until(lambda: pods.phase(name) == "Running")
    wait_until(lambda: "ready" in pods.client.get(f"{PODS}/{name}/log"))
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


def test_limits(pods: Pods) -> None:
    limits = {"resources": {"limits": {"memory": "64Mi", "cpu": "500m"}}}
    pods.start("limited", "sleep 100", main=limits)
    wait_until(lambda: pods.phase("limited") == "Running")
    (state,) = pods.status("limited")["containerStatuses"]
    id = state["containerID"].removeprefix("docker://")
    host = pods.cluster.kubelet.client.inspect_container(id)["HostConfig"]
    assert (host["Memory"], host["CpuQuota"]) == (64 << 20, 50_000)
    assert pods.client.call("DELETE", f"{PODS}/limited?gracePeriodSeconds=0")[0] == 200
    assert pods.is_gone("limited"), "without grace it goes at once"
