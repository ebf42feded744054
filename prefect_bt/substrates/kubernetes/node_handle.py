"""A node in a cluster, seen from any process."""

from __future__ import annotations

from dataclasses import dataclass

from prefect_bt.errors import StoreError, SubstrateError
from prefect_bt.ledger.node_objects import NodeRequest
from prefect_bt.ledger.records import Cause, NodeStatus
from prefect_bt.substrates.kubernetes.client import SUBSTRATE_NAME
from prefect_bt.substrates.kubernetes.gang import KubernetesGang


@dataclass(frozen=True)
class KubernetesNodeHandle:
    """Handles of one node are interchangeable: all state is the gang's."""

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
        """Return bytes of the log; none while the store does not answer.

        SubstrateError of a node that is over, whose log has to be read to its end.
        """
        try:
            return self.gang.objects.read_log(self.rank, offset=offset, limit=limit)
        except StoreError as error:
            if not self.gang.observe(self.rank).is_over:
                return b""
            raise SubstrateError(
                f"The log of rank {self.rank} cannot be read: {error.message}",
                substrate=SUBSTRATE_NAME,
                next_step=error.next_step,
                cause=Cause.STORE_FAILED,
            ) from error

    def remove(self) -> None:
        """Remove the whole gang, which is one Job; with it go files that were not uploaded."""
        self.gang.remove()
