"""Handle of a node in a cluster, usable from any process."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from prefect_bt.errors import StoreError
from prefect_bt.ledger.node_objects import METRICS
from prefect_bt.ledger.records import NodeStatus
from prefect_bt.ledger.requests import StopRequest
from prefect_bt.substrates.kubernetes.client import store_error
from prefect_bt.substrates.kubernetes.gang_status import KubernetesGang


@dataclass(frozen=True)
class KubernetesNodeHandle:
    """Handle of one node. Its state is in the gang, so that all handles of a node are equal."""

    gang: KubernetesGang
    attempt: int
    rank: int

    def observe(self) -> NodeStatus:
        return self.gang.observe(self.rank)

    def stop(self, *, reason: str, force: bool = False, grace: float | None = None) -> None:
        self.gang.stop(self.rank, StopRequest(reason=reason, force=force, grace=grace))

    def kill_unresponsive(self) -> None:
        self.gang.kill_unresponsive(self.rank)

    def kill_commands(self) -> bool:
        """Request that the agent kills the commands, within about a second."""
        return self.gang.kill_commands(self.rank)

    def server_address(self) -> str | None:
        """Return None: nodes in a cluster do not serve models."""
        return None

    def server_process(self) -> None:
        return None

    def log_size(self) -> int:
        return self.gang.objects.log_size(self.rank)

    def read_log(self, *, offset: int, limit: int) -> bytes:
        """Return bytes of the log; none while the store does not answer.

        SubstrateError if the node is over, because its log must be read to the end.
        """
        try:
            return self.gang.objects.read_log(self.rank, offset=offset, limit=limit)
        except StoreError as error:
            if not self.gang.observe(self.rank).is_over:
                return b""
            raise store_error(error, f"The log of rank {self.rank} cannot be read") from error

    def read_metrics(self, *, offset: int, limit: int) -> bytes:
        """Return bytes of the metrics; none while the store does not answer."""
        with suppress(StoreError):
            objects = self.gang.objects
            return objects.read_log(self.rank, offset=offset, limit=limit, file=METRICS)
        return b""

    def remove(self) -> None:
        """Remove the whole gang, which is one Job. Files that were not uploaded are lost."""
        self.gang.remove()
