"""Run every scan of `prefect-bt gc`, for one machine and its store."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from prefect_bt.gc.api_uploads import scan_api_uploads
from prefect_bt.gc.containers import ContainerScanner, scan_cluster_jobs
from prefect_bt.gc.findings import Findings, Scan, run_scans
from prefect_bt.gc.job_folders import JobScanner
from prefect_bt.gc.liveness import JobStores
from prefect_bt.gc.processes import ProcessScanner, scan_routers
from prefect_bt.gc.python_environments import scan_python_environments
from prefect_bt.gc.queue import scan_queue, scan_unwritten_jobs
from prefect_bt.gc.store_objects import UploadScanner, scan_brief_objects, scan_holds
from prefect_bt.gc.weights import WeightsScanner
from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.settings import Settings
from prefect_bt.substrates.docker.endpoints import list_used_engines
from prefect_bt.substrates.kubernetes.client import ClusterClient
from prefect_bt.weights.cache.node_cache import NodeCache

UNFINISHED_SECONDS: Final = 7 * 86400.0
"""Age from which an unfinished transfer that no job owns is an orphan."""


def scan_for_orphans(
    settings: Settings, *, include_unsaved: bool = False, older_than: float = UNFINISHED_SECONDS
) -> Findings:
    """Return what no living job owns. Change nothing.

    `older_than`: seconds after which an unfinished transfer that no job owns is an orphan.
    """
    state_dir = settings.state_dir.expanduser().resolve()
    stores = JobStores(open_ledger, settings.store)
    cache = NodeCache(state_dir / settings.weights_dir.name)
    scans: list[Scan] = [
        # Before the folders of jobs, which show that a push died here.
        ("The jobs of the store", partial(scan_unwritten_jobs, state_dir, stores, older_than)),
        ("The queue of the store", partial(scan_queue, state_dir, stores)),
        ("The jobs of this machine", JobScanner(state_dir, stores, include_unsaved).scan),
        *(
            (f"The Docker Engine at {one.address}", ContainerScanner(state_dir, stores, one).scan)
            for one in list_used_engines(state_dir)
        ),
        *_scan_clusters(settings, stores),
        ("The processes of this machine", ProcessScanner(state_dir, stores).scan),
        ("The deployments of this machine", partial(scan_routers, state_dir, stores)),
        ("The weights of this machine", WeightsScanner(cache, stores, older_than).scan),
        ("The Python environments", partial(scan_python_environments, state_dir)),
        ("Uploads to the API of this machine", partial(scan_api_uploads, state_dir)),
        ("Uploads into the store", UploadScanner(stores, older_than).scan),
        ("Holds in the store", partial(scan_holds, stores)),
        ("Brief objects in the store", partial(scan_brief_objects, stores, older_than)),
    ]
    found = run_scans(scans)
    return replace(found, notes=tuple(dict.fromkeys([*found.notes, *stores.notes])))


def _scan_clusters(settings: Settings, stores: JobStores) -> list[Scan]:
    """Return the scan of the configured cluster; none on a machine that uses no cluster."""
    if settings.substrate != "kubernetes" and settings.kubernetes == ClusterSettings():
        return []
    client = ClusterClient(settings.kubernetes)
    return [("The Kubernetes namespace", partial(scan_cluster_jobs, client, stores))]
