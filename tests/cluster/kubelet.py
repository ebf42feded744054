"""The kubelets of all nodes: one worker for each pod, and the network that pods share."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from .engine import Engine, errors
from .objects import Store, has_condition
from .pod_worker import PodWorker
from .resources import PODS, SERVICES, Obj, bad_request, part
from .volumes import MEMORY

LABEL = "prefect-bt-test/cluster"


class Kubelet:
    """Runs the pods of every node, whatever the node is called, on one Engine."""

    def __init__(
        self, store: Store, client: Engine, *, image: str, name: str, folder: Path
    ) -> None:
        self.store, self.client, self.name = store, client, name
        self._image, self._folder = image, folder
        self.ended = threading.Event()
        self.lost: set[str] = set()
        """The nodes whose kubelet does nothing."""
        self.faults: list[str] = []
        """What went wrong in the cluster itself; the end of the cluster asserts that it is none."""
        self._workers: dict[str, PodWorker] = {}
        self.network = client.create_network(name, driver="bridge", labels={LABEL: name})["Id"]

    @property
    def gateway(self) -> str:
        return self.client.inspect_network(self.network)["IPAM"]["Config"][0]["Gateway"]

    def labels(self, uid: str) -> dict[str, str]:
        return {LABEL: self.name, "io.kubernetes.pod.uid": uid}

    def folders(self, uid: str) -> tuple[Path, Path, Path]:
        """Return where a pod's volumes are, those in memory, and the claims of all pods."""
        memory = MEMORY / self.name / uid
        return self._folder / "pods" / uid, memory, self._folder / "claims"

    def turn(self) -> None:
        """Start workers for new pods, and tell all of the names there are."""
        for pod in self.store.all(PODS):
            uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
            over = pod["status"].get("phase") in ("Succeeded", "Failed")
            if node and node not in self.lost and uid not in self._workers and not over:
                self._workers[uid] = PodWorker(self, pod)
                self._workers[uid].thread.start()
        names = dict.fromkeys(self._namespaces(), "")
        for namespace in names:
            names[namespace] = self._names(namespace)
        for worker in list(self._workers.values()):
            worker.containers.write_hosts(names.get(worker.namespace, ""))

    def _namespaces(self) -> set[str]:
        return {worker.namespace for worker in list(self._workers.values())}

    def _names(self, namespace: str) -> str:
        """Return lines for /etc/hosts: the pods that headless services select."""
        lines: list[str] = []
        pods = [pod for pod in self.store.all(PODS, namespace) if pod["status"].get("podIP")]
        for service in self.store.all(SERVICES, namespace):
            spec, name = service["spec"], service["metadata"]["name"]
            for pod in pods:
                labels = part(pod["metadata"], "labels")
                chosen = part(spec, "selector").items() <= labels.items()
                ready = spec.get("publishNotReadyAddresses") or has_condition(pod, "Ready")
                over = pod["status"]["phase"] in ("Succeeded", "Failed")
                if spec.get("clusterIP") == "None" and spec.get("selector") and chosen:
                    lines += [_line(pod, name)] if ready and not over else []
        return "".join(lines)

    def start_holder(self, stem: str, uid: str, hostname: str) -> tuple[str, str]:
        """Start the container that owns a pod's network; return its id and its address."""
        made = self.client.create_container(
            self._image,
            name=f"{stem}-holder",
            hostname=hostname,
            entrypoint=["/bin/sleep", "1000000"],
            labels=self.labels(uid),
            host_config=self.client.create_host_config(network_mode=self.name),
        )["Id"]
        self.client.start(made)
        networks = self.client.inspect_container(made)["NetworkSettings"]["Networks"]
        return made, networks[self.name]["IPAddress"]

    def read_log(self, pod: Obj, container: str, query: dict[str, str]) -> bytes:
        """Return a container's output as `pods/log` does."""
        name, tail = pod["metadata"]["name"], query.get("tailLines")
        worker = self._workers.get(pod["metadata"]["uid"])
        if worker is None:
            return b""
        found = worker.containers.log(container, None if tail is None else int(tail))
        if found is None:
            reason = worker.containers.waiting_reason(container)
            said = f'container "{container}" in pod "{name}" is waiting to start: {reason}'
            raise bad_request(said)
        return found

    def kill_node(self, node: str) -> None:
        """Kill the containers of a node that is lost, without a word to the API."""
        for worker in list(self._workers.values()):
            if worker.node == node:
                worker.containers.kill_silently()

    def forget(self, uid: str) -> None:
        self._workers.pop(uid, None)

    def close(self) -> None:
        """End all workers and remove what is on the Engine."""
        self.ended.set()
        for worker in list(self._workers.values()):
            worker.thread.join(60)
        for container in self.left():
            self.client.remove_container(container, force=True, v=True)
        with contextlib.suppress(errors.NotFound):
            self.client.remove_network(self.network)

    def left(self) -> list[str]:
        """Return the containers of this cluster that are on the Engine."""
        mine = {"label": f"{LABEL}={self.name}"}
        return [each["Id"] for each in self.client.containers(all=True, filters=mine)]


def _line(pod: Obj, service: str) -> str:
    """Return the pod's line of a service: its names below the service's, or the service's."""
    spec, namespace = pod["spec"], pod["metadata"]["namespace"]
    names = [service]
    if spec.get("subdomain") == service:
        names.insert(0, f"{spec.get('hostname') or pod['metadata']['name']}.{service}")
    full = [
        f"{name}.{namespace}{end}" for name in names for end in ("", ".svc", ".svc.cluster.local")
    ]
    return f"{pod['status']['podIP']} {' '.join([*names, *full])}\n"
