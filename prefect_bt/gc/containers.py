"""Scanners of Docker Engines and of the Kubernetes namespace for what nodes left there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

from prefect_bt.gc.findings import Orphan, OrphanKind
from prefect_bt.gc.job_folders import find_handle
from prefect_bt.gc.liveness import ALIVE, JobStores, Liveness, find_orphan
from prefect_bt.host.job_lock import is_owned
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.substrates.docker.container_arguments import LABEL_MARK
from prefect_bt.substrates.docker.engine import DockerEngine
from prefect_bt.substrates.kubernetes.client import ClusterClient
from prefect_bt.substrates.kubernetes.names import LABEL_JOB, LABEL_STORE, store_label

_LABELLED = {"label": [LABEL_MARK]}


@dataclass(frozen=True)
class ContainerScanner:
    """Scanner of one Engine for containers and networks of one state folder."""

    state_dir: Path
    stores: JobStores
    engine: DockerEngine

    def scan(self) -> Iterator[Orphan]:
        """Yield the orphans. SubstrateError if the Engine does not answer."""
        for one in self._list(lambda client: client.containers(all=True, filters=_LABELLED)):
            remove = methodcaller("remove_container", one["Id"], force=True)
            name = str(one["Names"][0]).lstrip("/")
            yield from self._judge(OrphanKind.CONTAINER, name, one, remove)
        for one in self._list(lambda client: client.networks(filters=_LABELLED)):
            remove = methodcaller("remove_network", one["Id"])
            yield from self._judge(OrphanKind.NETWORK, str(one["Name"]), one, remove)

    def _list(self, request: Callable[[Any], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        return self.engine.call(request, action="listed")

    def _judge(
        self, kind: OrphanKind, name: str, one: dict[str, Any], remove: Callable[[Any], object]
    ) -> list[Orphan]:
        handle = find_handle(self.state_dir, one["Labels"].get(LABEL_MARK, ""))
        if handle is None:
            return []
        # The folder is made before the container and removed after it. A network is the gang's.
        folder = handle.folder.path if kind is OrphanKind.CONTAINER else handle.folder.path.parent
        return find_orphan(
            kind,
            name,
            partial(self._check, handle.job, folder),
            lambda: self.engine.find(remove),  # it may be gone
            job=handle.job.job_id,
        )

    def _check(self, job: JobFolder, folder: Path) -> Liveness:
        if folder.exists():
            return self.stores.check_unowned(job)
        is_gone = Liveness(True, "the folder of its node is gone")
        return ALIVE if is_owned(self.state_dir, job.job_id) else is_gone


def scan_cluster_jobs(client: ClusterClient, stores: JobStores) -> Iterator[Orphan]:
    """Yield Kubernetes Jobs of the default store whose training job is over.

    SubstrateError if the cluster does not answer.
    """
    path = f"/apis/batch/v1/namespaces/{client.namespace}/jobs"
    query = {"labelSelector": f"{LABEL_STORE}={store_label(stores.default_ledger.store.url)}"}
    found = client.request("GET", path, query=query, action="list the Jobs of gangs")
    for one in found["items"]:
        name, job_id = str(one["metadata"]["name"]), str(one["metadata"]["labels"][LABEL_JOB])
        yield from find_orphan(
            OrphanKind.CLUSTER_JOB,
            name,
            partial(_check_cluster_job, stores, job_id),
            partial(
                client.delete,
                f"{path}/{name}",
                query={"propagationPolicy": "Background"},
                action=f"delete Job {name}",
            ),
            job=job_id,
        )


def _check_cluster_job(stores: JobStores, job_id: str) -> Liveness:
    """Return the verdict. A job that is not in the store may be in another one of the same URL."""
    verdict = stores.check_liveness(job_id)
    return ALIVE if verdict.since is None else verdict
