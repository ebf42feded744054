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

import yaml

from .api_errors import ApiError
from .api_server import ADMIN, ApiServer, Request
from .containers import Engine
from .controllers import collect_garbage, schedule
from .job_controller import JobController
from .kubelet import Kubelet
from .resources import NODES, PODS, RESOURCES, Obj, place
from .store import Store, random_letters, set_condition
from .volumes import MEMORY

PERIOD = 0.1
UNREACHABLE: Obj = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
Nodes = Mapping[str, Mapping[str, Any]]
"""Name -> any of `labels`, `taints` and `allocatable`, the last on top of what the Engine has."""


class Cluster:
    """Starts with `start`; `close` ends it and looks for what is left on the Engine."""

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
        """The address of this machine, as pods see it."""
        self.server.read_log = self.kubelet.read_log
        self._jobs = JobController(self.server.verbs)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._control, daemon=True)

    def start(self) -> None:
        for name, given in self._nodes.items():
            self._add_node(name, **given)
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
        assert self.kubelet.left() == []
        assert self._engine.networks(names=[self.name]) == []
        assert not self.kubelet.faults, "\n".join(self.kubelet.faults)

    def _control(self) -> None:
        """Let every controller have its turn whenever something has changed."""
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
                    continue  # what it saw has changed meanwhile: it looks again
                except Exception:
                    self.kubelet.faults.append(traceback.format_exc())
            self.store.wait(version, PERIOD)

    def _add_node(self, name: str, **given: Any) -> None:
        info = self._engine.info()
        has = {"cpu": str(info["NCPU"]), "memory": f"{info['MemTotal'] // 1024}Ki"}
        has |= given.get("allocatable", {})
        labels = {"kubernetes.io/hostname": name, **given.get("labels", {})}
        node: Obj = {"apiVersion": "v1", "kind": "Node"}
        node["metadata"] = {"name": name, "labels": labels}
        node["spec"] = {"taints": list(given.get("taints", []))}
        node["status"] = {"allocatable": has, "capacity": dict(has)}
        set_condition(node, "Ready", True, reason="KubeletReady")
        self.store.create(NODES, node)

    # --- users and objects

    @property
    def kubeconfig(self) -> Path:
        """The admin's."""
        return self.kubeconfig_for(ADMIN)

    def kubeconfig_for(self, user: str, namespace: str = "default") -> Path:
        """Write the kubeconfig of a user, who may do what roles say and no more."""
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
        """Create an object past HTTP and roles."""
        kinds = [(each.api_version, each.kind) for each in RESOURCES]
        resource = RESOURCES[kinds.index((api_version, kind))]
        obj = {"apiVersion": api_version, "kind": kind, **body}
        return self.server.verbs.create(resource, namespace, obj)

    def apply(self, manifest: str, namespace: str = "") -> None:
        """Create the objects of a YAML text; `namespace` is for those that name none."""
        for each in filter(None, yaml.safe_load_all(manifest)):
            where = each["metadata"].get("namespace", namespace)
            self.create(each["apiVersion"], each["kind"], each, where)

    def add_namespace(self, name: str) -> None:
        self.create("v1", "Namespace", {"metadata": {"name": name}})

    @property
    def requests(self) -> list[Request]:
        """Every request that was answered, and every watch that began, oldest first."""
        return list(self.server.log)

    def count(self, *, verb: str = "", resource: str = "", user: str = "", since: float = 0) -> int:
        """Count the requests of that kind since that time."""
        return sum(
            verb in ("", each.verb)
            and resource in ("", each.path)
            and user in ("", each.user)
            and each.time >= since
            for each in self.requests
        )

    # --- faults of the API, of pods and of nodes

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
            self.server.verbs.evict(*place(pod))

    def lose_node(self, node: str, after: float = 0.5) -> None:
        """Let the node's kubelet and containers go silently; its pods are deleted after a while."""
        self.kubelet.lose(node)
        said = {"reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}

        def mark(obj: Obj) -> None:
            set_condition(obj, "Ready", "Unknown", **said)
            obj["spec"]["taints"] = [*obj["spec"]["taints"], UNREACHABLE]

        self.store.mutate(NODES, "", node, mark)
        time.sleep(after)
        message = "Taint manager: deleting due to NoExecute taint"
        for pod in self._pods_on(node):
            self._disrupt(pod, "DeletionByTaintManager", message)
            self.server.verbs.delete(PODS, *place(pod), {})

    def evict_for_pressure(self, namespace: str, name: str) -> None:
        """Let the kubelet end a pod because its node is short of memory."""
        said = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 1Ki. "
        self._disrupt(self.store.get(PODS, namespace, name), "TerminationByKubelet", said)
        ended = {"phase": "Failed", "reason": "Evicted", "message": said}
        self.store.mutate(PODS, namespace, name, lambda obj: obj["status"].update(ended))

    def _pods_on(self, node: str) -> list[Obj]:
        return [pod for pod in self.store.all(PODS) if pod["spec"].get("nodeName") == node]

    def _disrupt(self, pod: Obj, reason: str, message: str) -> None:
        why = {"reason": reason, "message": message}
        self.store.mutate(
            PODS, *place(pod), lambda obj: set_condition(obj, "DisruptionTarget", True, **why)
        )
