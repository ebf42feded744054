"""A small Kubernetes cluster for tests, whose pods are containers of a Docker Engine.

It has an API server, a scheduler, a controller of Jobs, garbage collection, and a kubelet. Tests
compare its answers with those of a real cluster, which are in recordings/.
"""

from __future__ import annotations

import shutil
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from .api_errors import ApiError
from .api_server import ADMIN, ApiServer
from .containers import Engine
from .controllers import collect_garbage, schedule
from .job_controller import JobController
from .kubelet import Kubelet
from .resources import NODES, PODS, RESOURCES, Obj, place
from .store import Store, random_letters, set_condition
from .volumes import MEMORY

PERIOD = 0.1
Nodes = Mapping[str, Mapping[str, str]]
"""Name -> its allocatable resources, if they are not the Engine's."""


class Cluster:
    """`start` starts it; `close` ends it, and removes everything of it from the Engine."""

    def __init__(
        self, engine: Engine, image: str, folder: Path, *, nodes: Nodes | None = None
    ) -> None:
        self._folder, self._engine = folder, engine
        self.name = f"bt-cluster-{random_letters(8)}"
        self._nodes: Nodes = {"node-1": {}} if nodes is None else nodes
        self.store = Store()
        self.server = ApiServer(self.store)
        self.kubelet = Kubelet(self.store, engine, image=image, name=self.name, folder=folder)
        self.gateway = self.kubelet.gateway
        """The address by which pods reach this machine."""
        self._jobs = JobController(self.server.verbs)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._control, daemon=True)

    def start(self) -> None:
        for name, resources in self._nodes.items():
            self._add_node(name, resources)
        self.add_namespace("default")
        self.server.start()
        self._thread.start()

    def close(self) -> None:
        self.server.stop()
        self._ended.set()
        self._thread.join(60)
        self.kubelet.close()
        shutil.rmtree(MEMORY / self.name, ignore_errors=True)
        shutil.rmtree(self._folder / "pods", ignore_errors=True)
        assert not self.kubelet.faults, "\n".join(self.kubelet.faults)

    def _control(self) -> None:
        """Run all controllers whenever an object has changed."""
        turns: Sequence[Callable[[], None]] = (
            self._jobs.turn,
            lambda: collect_garbage(self.server.verbs),
            lambda: schedule(self.store),
            self.kubelet.turn,
        )
        while not self._ended.is_set():
            version = self.store.version
            for turn in turns:
                try:
                    turn()
                except ApiError:
                    continue  # an object has changed meanwhile: the next turn sees it
                except Exception:
                    self.kubelet.faults.append(traceback.format_exc())
            self.store.wait(version, PERIOD)

    def _add_node(self, name: str, resources: Mapping[str, str]) -> None:
        info = self._engine.info()
        has = {"cpu": str(info["NCPU"]), "memory": f"{info['MemTotal'] // 1024}Ki", **resources}
        node: Obj = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}}
        self.store.create(NODES, {**node, "status": {"allocatable": has, "capacity": dict(has)}})

    # --- users and objects

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the admin."""
        return self.kubeconfig_for(ADMIN)

    def kubeconfig_for(self, user: str, namespace: str = "default") -> Path:
        """Write the kubeconfig of a user, whose rights are those of the roles bound to it."""
        path = self._folder / f"kubeconfig-{user.replace(':', '-')}-{namespace}"
        context = {"cluster": "tests", "user": user, "namespace": namespace}
        config = {
            "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": {"server": self.server.address}}],
            "users": [{"name": user, "user": {"token": self.server.token(user)}}],
            "contexts": [{"name": "tests", "context": context}],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    def create(self, api_version: str, kind: str, body: Obj, namespace: str = "") -> Obj:
        """Create an object without HTTP and without authorization."""
        kinds = [(each.api_version, each.kind) for each in RESOURCES]
        resource = RESOURCES[kinds.index((api_version, kind))]
        obj = {"apiVersion": api_version, "kind": kind, **body}
        return self.server.verbs.create(resource, namespace, obj)

    def apply(self, manifest: str, namespace: str = "") -> None:
        """Create the objects of a YAML text; `namespace` is that of objects without one."""
        for each in filter(None, yaml.safe_load_all(manifest)):
            where = each["metadata"].get("namespace", namespace)
            self.create(each["apiVersion"], each["kind"], each, where)

    def add_namespace(self, name: str) -> None:
        self.create("v1", "Namespace", {"metadata": {"name": name}})

    # --- faults of the API and of nodes

    def restart_api(self, seconds: float = 0.5, *, loading: float = 0.0) -> None:
        """Close all connections and the port, and listen again after `seconds`.

        `loading`: seconds for which the new server then refuses users.
        """
        self.server.stop()
        time.sleep(seconds)
        self.server.start(loading)

    def lose_node(self, node: str, after: float = 0.5) -> None:
        """Stop the node's kubelet and containers; delete its pods after `after` seconds.

        As on a real cluster, the pods stay in the API until somebody deletes them without grace.
        """
        self.kubelet.lose(node)
        why = {"reason": "DeletionByTaintManager"}
        why["message"] = "Taint manager: deleting due to NoExecute taint"

        def disrupt(obj: Obj) -> None:
            set_condition(obj, "Ready", False)
            set_condition(obj, "DisruptionTarget", True, **why)

        self.store.mutate(NODES, "", node, lambda obj: obj["spec"].update(unschedulable=True))
        time.sleep(after)
        for pod in self.store.all(PODS):
            if pod["spec"].get("nodeName") == node:
                self.store.mutate(PODS, *place(pod), disrupt)
                self.server.verbs.delete(PODS, *place(pod), {})
