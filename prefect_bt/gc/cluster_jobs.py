"""Scanner for Kubernetes Jobs whose training job is over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from prefect_bt.gc.findings import Orphan, OrphanKind
from prefect_bt.gc.liveness import JobStores
from prefect_bt.substrates.kubernetes.client import ClusterClient
from prefect_bt.substrates.kubernetes.names import LABEL_JOB, LABEL_STORE, store_label


@dataclass(frozen=True)
class ClusterJobScanner:
    """Scanner of the configured namespace. It ignores Jobs of other stores than the default one."""

    client: ClusterClient
    stores: JobStores

    def scan(self) -> Iterator[Orphan]:
        """Yield the orphans. SubstrateError if the cluster does not answer."""
        jobs = f"/apis/batch/v1/namespaces/{self.client.namespace}/jobs"
        store = self.stores.get_ledger(self.stores.default_url).store.url
        query = {"labelSelector": f"{LABEL_STORE}={store_label(store)}"}
        found = self.client.request("GET", jobs, query=query, action="list the Jobs of gangs")
        for one in found["items"]:
            orphan = self._judge(jobs, one["metadata"])
            if orphan is not None:
                yield orphan

    def _judge(self, jobs: str, metadata: dict[str, Any]) -> Orphan | None:
        """Return the Job as an orphan; None unless its training job is known to be over."""
        name, job_id = str(metadata["name"]), str(metadata["labels"][LABEL_JOB])
        verdict = self.stores.check_liveness(job_id, [self.stores.default_url])
        if not verdict.ended or verdict.since is None:
            return None  # an unknown job may belong to another store with the same URL

        def remove() -> None:
            if not self.stores.check_liveness(job_id, [self.stores.default_url]).ended:
                raise OSError(f"job {job_id} runs again")
            query = {"propagationPolicy": "Background"}
            self.client.delete(f"{jobs}/{name}", query=query, action=f"delete Job {name}")

        return Orphan(OrphanKind.CLUSTER_JOB, name, verdict.reason, remove, job=job_id)
