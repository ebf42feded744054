"""A node in a cluster, seen from any process."""

from __future__ import annotations

from dataclasses import dataclass

from prefect_bt.ledger.node_objects import NodeRequest
from prefect_bt.ledger.records import NodeStatus
from prefect_bt.substrates.kubernetes.gang import KubernetesGang


@dataclass(frozen=True)
class KubernetesNodeHandle:
    """Two handles of one node are as good."""

    gang: KubernetesGang
    attempt: int
    rank: int

    def observe(self) -> NodeStatus:
        return self.gang.observe(self.rank)

    def stop(self, *, reason: str, force: bool = False, grace: float | None = None) -> None:
        self.gang.stop(self.rank, NodeRequest(reason, force, grace))

    def kill_unresponsive(self) -> None:
        self.gang.kill_unresponsive(self.rank)

    def kill_commands(self) -> bool:
        """Have the agent do it, within about a second."""
        return self.gang.kill_commands(self.rank)

    def server_address(self) -> str | None:
        """Return None: nothing in a cluster serves yet."""
        return None

    def server_process(self) -> None:
        return None

    def read_log(self, *, offset: int, limit: int) -> bytes:
        return self.gang.objects.read_log(self.rank, offset=offset, limit=limit)

    def remove(self) -> None:
        """Remove the whole gang, which is one Job; with it go files that were not uploaded."""
        self.gang.remove()
