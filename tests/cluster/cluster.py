"""A small Kubernetes cluster of the tests' own, whose pods are containers of a Docker Engine.

It has the parts of a real one that tests need: an API server, a scheduler, a controller of Jobs,
garbage collection, and kubelets. What the real one answers is in recordings/, and compared.
"""

from __future__ import annotations

import shutil
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from .access import ADMIN
from .api_server import ApiServer
from .calls import Request
from .controllers import turn
from .engine import Engine
from .faults import Faults
from .job_controller import JobController
from .kubelet import Kubelet
from .objects import Store, random_letters, set_condition
from .resources import BY_NAME, NODES, PODS, ApiError, Obj, Resource
from .scheduler import schedule
from .volumes import MEMORY

PERIOD = 0.1
Nodes = Mapping[str, Mapping[str, Any]]
"""Name -> any of `labels`, `taints` and `allocatable`, the last on top of what the Engine has."""


class Cluster(Faults):
    """Starts with `start`; `close` ends it and looks for what is left on the Engine."""

    def __init__(
        self, engine: Engine, image: str, folder: Path, *, nodes: Nodes | None = None
    ) -> None:
        self.folder, self.image, self._engine = folder, image, engine
        self.name = f"bt-cluster-{random_letters(8)}"
        self._nodes: Nodes = {"node-1": {}} if nodes is None else nodes
        self.store = Store()
        self.server = ApiServer(self.store)
        self.kubelet = Kubelet(self.store, engine, image=image, name=self.name, folder=folder)
        self.server.read_log = self.kubelet.read_log
        self._jobs = JobController(self.server.verbs)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._control, daemon=True)

    @property
    def gateway(self) -> str:
        """The address of this machine, as pods see it."""
        return self.kubelet.gateway

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
        assert not self.kubelet.faults, "\n".join(self.kubelet.faults)

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
                except ApiError:
                    continue  # what it saw has changed meanwhile: it looks again
                except Exception:
                    self.kubelet.faults.append(traceback.format_exc())
            self.store.wait(version, PERIOD)

    # --- users and objects

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
        node["metadata"] = {"name": name, "labels": labels}
        address = [{"type": "Hostname", "address": name}]
        node["status"] = {"allocatable": has, "capacity": dict(has), "addresses": address}
        said = "kubelet is posting ready status"
        set_condition(node, "Ready", True, reason="KubeletReady", message=said)
        self.store.create(NODES, node)

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
