"""A gang of one pod, whose state the test sets before it looks at the gang."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from prefect_bt.ledger.node_objects import GangObjects, GangRecord
from prefect_bt.ledger.records import NodeStatus
from prefect_bt.object_store import open_store
from prefect_bt.substrates.kubernetes.client import ClusterClient
from prefect_bt.substrates.kubernetes.gang_status import KubernetesGang
from prefect_bt.substrates.kubernetes.job_objects import JobObjects
from tests.node_agent.rig import wait_until

from .api_stub import ApiStub, answer, stream
from .recordings import pod_object

RECORD = GangRecord("gang", "rec", "ctx", "https://api", 1, 17.0)
AGENT_RUNS = {
    "phase": "Running",
    "containerStatuses": [{"name": "agent", "image": "x", "state": {"running": {}}}],
}


class GangSite:
    """A gang of one pod, whose state the test sets before it is looked at."""

    def __init__(self, api: ApiStub, client: ClusterClient, pod: dict[str, Any] | None) -> None:
        """`pod`: the status of the gang's pod; None if the Job has none."""
        self.objects = GangObjects(open_store("memory://"), "nodes/0000", clock=lambda: 1e9)
        self.now = 1000.0
        listed = {"metadata": {"resourceVersion": "1"}, "items": [pod_object(pod)] if pod else []}
        api.on("GET pods", answer(200, listed))
        self.changes = api.open_stream()
        api.on("WATCH pods", stream(self.changes))
        api.on("DELETE pods", answer(200, {}))
        api.on("DELETE gang", answer(200, {}))
        api.on("DELETE prefect-bt-abc1234-0-0-x7k2p", answer(200, {}))
        self.gang = self.open(client)

    def open(self, client: ClusterClient, *, queue: str = "") -> KubernetesGang:
        job = JobObjects(client, "rec", "gang")
        gang = KubernetesGang(job, self.objects, RECORD, patience=60.0, queue=queue)
        gang.clock = lambda: self.now
        gang.watch.start()
        wait_until(lambda: gang.watch.is_listed)
        return gang

    def say(self, status: NodeStatus, number: int = 0) -> None:
        self.objects.rank(0).write_status(status, number)
        self.objects.read_latest_status(0)

    def change(self, kind: str, pod: dict[str, Any]) -> None:
        """Send the gang's watch a change of the pod, MODIFIED or DELETED."""
        metadata = {**pod["metadata"], "resourceVersion": "990"}
        event = {"type": kind, "object": {**pod, "metadata": metadata}}
        self.changes.put(json.dumps(event).encode() + b"\n")


OpenSite = Callable[[dict[str, Any] | None], GangSite]
