"""Copy the metrics of each rank into the store, before the attempt's outcome is written."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from prefect_bt.errors import StoreError, SubstrateError
from prefect_bt.ledger.node_objects import METRICS, GangObjects
from prefect_bt.object_keys import metrics_prefix
from prefect_bt.object_store.protocols import Store

READ_BYTES: Final = 4 << 20


class MetricsSource(Protocol):
    """A node whose metrics can be read from any offset. SubstrateError, StoreError or OSError."""

    @property
    def rank(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    def read_metrics(self, *, offset: int, limit: int) -> bytes: ...


@dataclass(frozen=True)
class PublishedMetrics:
    """The metrics of a node as far as its machine has published them."""

    gang: GangObjects
    attempt: int
    rank: int

    def read_metrics(self, *, offset: int, limit: int) -> bytes:
        return self.gang.read_log(self.rank, offset=offset, limit=limit, file=METRICS)


def read_all(source: MetricsSource) -> bytes:
    """Return the metrics up to now."""
    data = b""
    while new := source.read_metrics(offset=len(data), limit=READ_BYTES):
        data += new
    return data


def archive_metrics(
    store: Store, project_id: str, job_id: str, attempt: int, nodes: Sequence[MetricsSource]
) -> None:
    """Archive the metrics of this attempt's nodes. A longer copy in the store stays.

    Idempotent. An error costs the metrics of a node, and never the outcome of its job.
    """
    prefix = metrics_prefix(project_id, job_id, attempt)
    with suppress(StoreError):
        sizes = {info.key: info.size for info in store.list(prefix)}
        for node in nodes:
            key = f"{prefix}/rank-{node.rank}"
            with suppress(StoreError, SubstrateError, OSError):
                data = read_all(node) if node.attempt == attempt else b""
                if len(data) > sizes.get(key, 0):
                    store.put(key, data)
