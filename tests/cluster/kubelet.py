"""The kubelet of all nodes: a worker for each pod, and the network of the pods."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.docker.removal import owner_label, remove_abandoned, remove_labelled

from .containers import Engine
from .pod import PodWorker
from .resources import PODS, SERVICES, Obj, part, place
from .store import Store, is_over
from .volumes import MEMORY

LABEL = "prefect-bt-test/cluster"


class Kubelet:
    """Runs the pods of all nodes on one Engine."""

    def __init__(
        self, store: Store, client: Engine, *, image: str, name: str, folder: Path
    ) -> None:
        self.store, self.client, self.name = store, client, name
        self.folder, self._image = folder, image
        self.ended = threading.Event()
        self.lost: set[str] = set()
        """The nodes that `lose` stopped."""
        self.faults: list[str] = []
        """Tracebacks of the cluster's own errors; `Cluster.close` asserts that there are none."""
        self.workers: dict[str, PodWorker] = {}
        remove_abandoned(client)
        labels = {LABEL: name, **owner_label()}
        self.network = client.create_network(name, driver="bridge", labels=labels)["Id"]
        settings = client.inspect_network(self.network)["IPAM"]["Config"][0]
        self.gateway: str = settings["Gateway"]

    def labels(self, uid: str) -> dict[str, str]:
        return {LABEL: self.name, "io.kubernetes.pod.uid": uid, **owner_label()}

    def folders(self, uid: str) -> tuple[Path, Path]:
        """Return the folders of the pod's volumes, and of those in memory."""
        return self.folder / "pods" / uid, MEMORY / self.name / uid

    def turn(self) -> None:
        """Start workers for new pods."""
        for pod in self.store.all(PODS):
            uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
            new = node and node not in self.lost and uid not in self.workers
            if new and not is_over(pod):
                self.workers[uid] = PodWorker(self, pod)
                self.workers[uid].thread.start()

    def start_holder(self, stem: str, pod: Obj, hostname: str) -> tuple[str, str]:
        """Start the container that holds the pod's network; return its id and address."""
        client = self.client
        names = client.create_endpoint_config(aliases=self._names(pod, hostname))
        made = client.create_container(
            self._image,
            name=f"{stem}-holder",
            hostname=hostname,
            entrypoint=["/bin/sleep", "1000000"],
            labels=self.labels(pod["metadata"]["uid"]),
            host_config=client.create_host_config(network_mode=self.name, dns=["127.0.0.1"]),
            networking_config=client.create_networking_config({self.name: names}),
        )["Id"]
        client.start(made)
        networks = client.inspect_container(made)["NetworkSettings"]["Networks"]
        return made, networks[self.name]["IPAddress"]

    def _names(self, pod: Obj, hostname: str) -> list[str]:
        """Return the pod's names below a headless service that selects it, ready or not."""
        service = pod["spec"].get("subdomain", "")
        namespace = place(pod)[0]
        found = self.store.find(SERVICES, namespace, service)
        labels = part(pod["metadata"], "labels")
        if found is None or not part(found["spec"], "selector").items() <= labels.items():
            return []
        ends = ("", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local")
        return [f"{hostname}.{service}{end}" for end in ends]

    def lose(self, node: str) -> None:
        """End the node's workers and remove its containers; the API is not updated."""
        self.lost.add(node)
        for worker in list(self.workers.values()):
            if worker.node == node:
                worker.thread.join(60)

    def close(self) -> None:
        """End all workers, and remove the containers and the network, also those still in use."""
        self.ended.set()
        for worker in list(self.workers.values()):
            worker.thread.join(60)
        remove_labelled(self.client, f"{LABEL}={self.name}")
