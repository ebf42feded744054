"""A small Kubernetes cluster of the tests' own, whose pods are containers of a Docker Engine.

It has the parts of a real one that tests need: an API server, a scheduler, a controller of Jobs,
garbage collection, and kubelets. What the real one answers is in recordings/, and compared.
"""

from __future__ import annotations

import shutil
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import docker
import yaml

from .access import ADMIN
from .api_server import ApiServer
from .calls import Request
from .controllers import turn
from .job_controller import JobController
from .kubelet import Kubelet
from .objects import Store, random_letters, set_condition
from .resources import BY_NAME, NODES, PODS, Obj, Resource
from .scheduler import schedule
from .volumes import MEMORY

PERIOD = 0.1
UNREACHABLE: Obj = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
Nodes = Mapping[str, Mapping[str, Any]]
"""Name -> any of `labels`, `taints` and `allocatable`, the last on top of what the Engine has."""


class Cluster:
    """Starts with `start`; `close` ends it and looks for what is left on the Engine."""

    def __init__(
        self, engine: docker.APIClient, image: str, folder: Path, *, nodes: Nodes | None = None
    ) -> None:
        self.folder, self._engine = folder, engine
        self.name = f"bt-cluster-{random_letters(8)}"
        self._nodes: Nodes = {"node-1": {}} if nodes is None else nodes
        self.store = Store()
        self.server = ApiServer(self.store)
        self.kubelet = Kubelet(self.store, engine, image=image, name=self.name, folder=folder)
        self.server.read_log = self.kubelet.read_log
        self._jobs = JobController(self.server.verbs)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._control, daemon=True)
        self.faults: list[str] = []
        """What went wrong in the cluster itself; `close` asserts that it is nothing."""

    def start(self) -> None:
        for name, given in self._nodes.items():
            self.add_node(name, **given)
        for name in ("default", "kube-system"):
            self.create("v1", "Namespace", {"metadata": {"name": name}})
        self.server.start()
        self._thread.start()

    def close(self) -> None:
        self.server.stop()
        self._ended.set()
        self._thread.join(60)
        self.kubelet.close()
        shutil.rmtree(MEMORY / self.name, ignore_errors=True)
        shutil.rmtree(self.folder / "pods", ignore_errors=True)
        assert self.kubelet.left() == []
        assert self._engine.networks(names=[self.name]) == []
        assert self.faults == []

    def _control(self) -> None:
        """Let every controller have its turn whenever something has changed."""
        parts: Sequence[Callable[[], None]] = (
            self._jobs.turn,
            lambda: turn(self.server.verbs),
            lambda: schedule(self.store),
            self.kubelet.turn,
        )
        while not self._ended.is_set():
            version = self.store.version
            for part in parts:
                try:
                    part()
                except Exception:
                    self.faults.append(traceback.format_exc())
            self.store.wait(version, PERIOD)

    # --- users and objects --------------------------------------------------------------------

    @property
    def kubeconfig(self) -> Path:
        """The admin's."""
        return self.kubeconfig_for(ADMIN)

    def kubeconfig_for(self, user: str, namespace: str = "default") -> Path:
        """Write the kubeconfig of a user, who may do what roles say and no more."""
        path = self.folder / f"kubeconfig-{user.replace(':', '-')}-{namespace}"
        context = {"cluster": "tests", "user": user, "namespace": namespace}
        config: Obj = {"apiVersion": "v1", "kind": "Config", "current-context": "tests"}
        server = {"server": self.server.address}
        config["clusters"] = [{"name": "tests", "cluster": server}]
        config["users"] = [{"name": user, "user": {"token": self.server.access.token(user)}}]
        config["contexts"] = [{"name": "tests", "context": context}]
        path.write_text(yaml.safe_dump(config))
        return path

    def create(self, api_version: str, kind: str, body: Obj, namespace: str = "") -> Obj:
        """Create an object past HTTP and roles."""
        resource = _resource(api_version, kind)
        return self.server.verbs.create(
            resource, namespace, {"apiVersion": api_version, "kind": kind, **body}
        )

    def apply(self, manifest: str, namespace: str = "") -> None:
        """Create the objects of a YAML text; `namespace` is for those that name none."""
        for each in yaml.safe_load_all(manifest):
            if each:
                where = each.get("metadata", {}).get("namespace", namespace)
                resource = _resource(each["apiVersion"], each["kind"])
                self.create(
                    each["apiVersion"], each["kind"], each, where if resource.namespaced else ""
                )

    def add_namespace(self, name: str) -> None:
        self.create("v1", "Namespace", {"metadata": {"name": name}})

    def get(self, resource: Resource, namespace: str, name: str) -> Obj:
        return self.store.get(resource, namespace, name)

    def pods(self, namespace: str = "") -> list[Obj]:
        return self.store.all(PODS, namespace)

    def add_node(self, name: str, **given: Any) -> None:
        """Add a node with `labels`, `taints` and `allocatable`; its pods run on the Engine too."""
        info = self._engine.info()
        has = {"cpu": str(info["NCPU"]), "memory": f"{info['MemTotal'] // 1024}Ki", "pods": "110"}
        has |= given.get("allocatable", {})
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
        labels |= {"kubernetes.io/arch": "amd64", **given.get("labels", {})}
        spec: Obj = {"taints": list(given["taints"])} if given.get("taints") else {}
        node: Obj = {"apiVersion": "v1", "kind": "Node", "spec": spec}
        node |= {"metadata": {"name": name, "labels": labels}}
        address = [{"type": "Hostname", "address": name}]
        node["status"] = {"allocatable": has, "capacity": dict(has), "addresses": address}
        said = "kubelet is posting ready status"
        set_condition(node, "Ready", True, reason="KubeletReady", message=said)
        self.store.create(NODES, node)

    # --- faults ---------------------------------------------------------------------------------

    def restart_api(self, seconds: float = 0.5) -> None:
        """Cut all connections, and listen again after that time; the state is kept."""
        self.server.stop()
        time.sleep(seconds)
        self.server.start()

    def compact(self) -> None:
        """Forget the history: watches from versions of before get 410."""
        self.store.compact()

    def hang_watches(self, hang: bool) -> None:
        """Keep watches open and silent, or let them speak again."""
        (self.server.silent.set if hang else self.server.silent.clear)()

    def throttle(self, count: int) -> None:
        """Answer the next requests with 429 and Retry-After."""
        self.server.throttled = count

    def deny_pods(self, message: str) -> None:
        """Let an admission webhook refuse every new pod; an empty message lets them in again."""
        self.server.verbs.denied = message

    def cordon(self, node: str, on: bool = True) -> None:
        self.store.mutate(NODES, "", node, lambda obj: obj["spec"].update(unschedulable=on))

    def drain(self, node: str) -> None:
        """Cordon the node and evict its pods."""
        self.cordon(node)
        for pod in self._pods_on(node):
            meta = pod["metadata"]
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction"}
            eviction["metadata"] = {"name": meta["name"], "namespace": meta["namespace"]}
            self.server.verbs.evict(meta["namespace"], meta["name"], eviction)

    def lose_node(self, node: str, after: float = 0.5) -> None:
        """Let the node's kubelet and containers go silently; its pods are deleted after a while."""
        self.kubelet.lost.add(node)
        self.kubelet.kill_node(node)
        said = {"reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}

        def mark(obj: Obj) -> None:
            set_condition(obj, "Ready", "Unknown", **said)
            obj["spec"]["taints"] = [*obj["spec"].get("taints", []), UNREACHABLE]

        self.store.mutate(NODES, "", node, mark)
        time.sleep(after)
        reason = "DeletionByTaintManager"
        message = "Taint manager: deleting due to NoExecute taint"
        for pod in self._pods_on(node):
            where = (pod["metadata"]["namespace"], pod["metadata"]["name"])
            self._set(pod, "DisruptionTarget", True, reason=reason, message=message)
            self.server.verbs.delete(PODS, where, {})

    def recover_node(self, node: str) -> None:
        """Let the kubelet of a lost node come back; it finds its containers ended."""

        def mark(obj: Obj) -> None:
            set_condition(obj, "Ready", True, reason="KubeletReady")
            obj["spec"]["taints"] = [t for t in obj["spec"]["taints"] if t != UNREACHABLE]

        self.store.mutate(NODES, "", node, mark)
        self.kubelet.lost.discard(node)

    def evict_for_pressure(self, namespace: str, name: str) -> None:
        """Let the kubelet end a pod because its node is short of memory."""
        message = (
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 1Ki. "
        )
        pod = self.get(PODS, namespace, name)
        said = "TerminationByKubelet"
        self._set(pod, "DisruptionTarget", True, reason=said, message=message)
        ended = {"phase": "Failed", "reason": "Evicted", "message": message}
        self.store.mutate(PODS, namespace, name, lambda obj: obj["status"].update(ended))

    def _pods_on(self, node: str) -> list[Obj]:
        return [pod for pod in self.pods() if pod["spec"].get("nodeName") == node]

    def _set(self, pod: Obj, type: str, status: bool, **more: str) -> None:
        where = (pod["metadata"]["namespace"], pod["metadata"]["name"])
        self.store.mutate(PODS, *where, lambda obj: set_condition(obj, type, status, **more))

    # --- the log of requests --------------------------------------------------------------------

    @property
    def requests(self) -> list[Request]:
        """Every request that was answered, and every watch that began, oldest first."""
        return list(self.server.log)

    def count(self, *, verb: str = "", resource: str = "", user: str = "", since: float = 0) -> int:
        """Count the requests of that kind since that time."""
        return sum(
            verb in ("", each.verb)
            and resource in ("", each.resource)
            and user in ("", each.user)
            and each.time >= since
            for each in self.requests
        )


def _resource(api_version: str, kind: str) -> Resource:
    found = [
        each for each in BY_NAME.values() if (each.api_version, each.kind) == (api_version, kind)
    ]
    assert found, f"the cluster has no {kind} of {api_version}"
    return found[0]
