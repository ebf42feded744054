"""The faults that tests bring about in a cluster."""

from __future__ import annotations

import time

from .api_server import ApiServer
from .kubelet import Kubelet
from .objects import Store, set_condition
from .resources import NODES, PODS, Obj

UNREACHABLE: Obj = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}


class Faults:
    """What goes wrong with the API, with pods and with nodes."""

    store: Store
    server: ApiServer
    kubelet: Kubelet

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
            eviction: Obj = {"apiVersion": "policy/v1", "kind": "Eviction"}
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
        pod = self.store.get(PODS, namespace, name)
        said = "TerminationByKubelet"
        self._set(pod, "DisruptionTarget", True, reason=said, message=message)
        ended = {"phase": "Failed", "reason": "Evicted", "message": message}
        self.store.mutate(PODS, namespace, name, lambda obj: obj["status"].update(ended))

    def _pods_on(self, node: str) -> list[Obj]:
        return [pod for pod in self.store.all(PODS) if pod["spec"].get("nodeName") == node]

    def _set(self, pod: Obj, type: str, status: bool, **more: str) -> None:
        where = (pod["metadata"]["namespace"], pod["metadata"]["name"])
        self.store.mutate(PODS, *where, lambda obj: set_condition(obj, type, status, **more))
