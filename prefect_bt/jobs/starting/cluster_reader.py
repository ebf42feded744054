"""The cluster of the Kubernetes substrate as a place of the queue."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from prefect_bt.errors import SubstrateError, UsageError
from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import Cause, Resources
from prefect_bt.queue.machines import list_machines, report_machine
from prefect_bt.queue.overview import list_machines_by_use
from prefect_bt.queue.pod_placement import PodPlacement
from prefect_bt.queue.records import KUBERNETES, Demand, Machine, to_cpus
from prefect_bt.settings import Settings, process_environment
from prefect_bt.substrates.kubernetes.client import ClusterClient
from prefect_bt.substrates.kubernetes.pod_hosts import measure_pod, read_pod_hosts
from prefect_bt.substrates.protocol import CPUS, MEMORY

READ_INTERVAL: Final = 2.0
"""Seconds for which what was read is used again."""
RETRY_DELAYS: Final = (0.5,)
TIMEOUT: Final = 2.0
"""Seconds for a connection, and without a byte: jobs of other places wait for the decision."""
RETRY_INTERVAL: Final = 30.0
"""Seconds to the next request of a cluster that did not answer: the queue waits meanwhile."""
_CHOOSING: Final = frozenset(
    {"node_selector", "accelerator_selectors", "gpu_resources", "tolerations", "job_patch"}
)
"""Settings by which the machines of a cluster are chosen."""


class ClusterReader:
    """Reads what a cluster has free. `problem`: why it could not be read last; "" if it was."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings, self._client = (
            settings,
            ClusterClient(
                settings,
                retry_delays=RETRY_DELAYS,
                refusal_delays=RETRY_DELAYS,
                connect_timeout=TIMEOUT,
                read_timeout=TIMEOUT,
            ),
        )
        self._machine: Machine | None = None
        self._due_at, self.problem = 0.0, ""

    @property
    def id(self) -> str:
        """Return the ID of the cluster's machines that the settings choose; "" for no cluster."""
        try:
            # Clusters may have the same address: that of their services, or of this machine.
            place = self._client.server, self._client.authority, self._client.namespace
        except SubstrateError:
            return ""
        chosen = self._settings.model_dump(include=set(_CHOOSING))
        return sha256(json.dumps([place, chosen], sort_keys=True).encode()).hexdigest()[:12]

    def forget(self) -> None:
        """Read the cluster again at its next use, unless it did not answer lately."""
        if not self.problem:
            self._due_at = 0.0

    def retry(self) -> None:
        """Read the cluster again at its next use."""
        self._due_at = 0.0

    def find_machine(self, cluster_id: str) -> Machine | None:
        """Return what the cluster offers; None for another cluster, or if it cannot be read."""
        if not cluster_id or cluster_id != self.id:
            return None
        if time.monotonic() >= self._due_at:
            try:
                self._machine, self.problem = self._read(cluster_id), ""
            except SubstrateError as error:
                self._machine, self.problem = None, _explain(error)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                self._machine = None
                self.problem = f"The nodes and pods of the cluster cannot be read ({error!r})."
            interval = RETRY_INTERVAL if self.problem else READ_INTERVAL
            self._due_at = time.monotonic() + interval
        return self._machine

    def _read(self, cluster_id: str) -> Machine:
        hosts = read_pod_hosts(self._client, self._settings)
        total = dict(PodPlacement(hosts, []).total)
        return Machine(
            cluster_id,
            f"{self._client.context or KUBERNETES}/{self._client.namespace}",
            to_cpus(total.pop(CPUS)),
            total.pop(MEMORY),
            total,
            time.time(),
            (KUBERNETES,),
            hosts,
        )


def find_job_cluster(ledger: Ledger, settings: Settings, known: str = "") -> str:
    """Return the ID of the cluster for a job; `known`: that of its push. "" if there is none.

    It is the cluster of the settings. A machine without one takes that of the store's queue. Raises
    UsageError if there are several.
    """
    own = find_cluster(settings).id
    if own and known in {"", own}:
        return own
    used, _ = list_machines_by_use(ledger.store)
    clusters = {one.host: one.name for one in used if one.is_cluster}
    if own or known in clusters:
        return known if known in clusters else own
    if known or not clusters:
        return known
    if len(clusters) > 1:
        raise UsageError(
            f"The queue of {ledger.store.url} has {len(clusters)} clusters: "
            f"{', '.join(sorted(clusters.values()))}. This machine has the settings of none of "
            "them, so it is not known which is meant.",
            next_step="Set KUBECONFIG, or PREFECT_BT_KUBERNETES with the context of the cluster.",
        )
    return next(iter(clusters))


def build_cluster_demand(
    ledger: Ledger, settings: Settings, cluster_id: str, each: Resources, nodes: int
) -> Demand:
    """Return what the pods of a job request in a cluster."""
    cpus, memory = measure_pod(each, settings.kubernetes)
    gpu_type = _match_gpus(ledger, settings, cluster_id, each.gpu_type) if each.gpus else ""
    return Demand(each.gpus * nodes, gpu_type, to_cpus(cpus * nodes), memory * nodes)


def _match_gpus(ledger: Ledger, settings: Settings, cluster_id: str, gpu_type: str) -> str:
    """Return the type; if no label chooses machines and none has it, the most frequent one."""
    chosen = {*settings.kubernetes.accelerator_selectors, *settings.kubernetes.gpu_resources}
    if gpu_type in chosen:
        return gpu_type
    cluster, machine = find_cluster(settings), None
    if cluster.id == cluster_id:
        machine = cluster.find_machine(cluster_id)
    elif cluster_id:
        machine = next((x for x in list_machines(ledger.store) if x.host == cluster_id), None)
    if machine is None or not machine.gpus or gpu_type in machine.gpus:
        return gpu_type
    return max(machine.gpus, key=lambda kind: machine.gpus[kind])


def report_cluster(ledger: Ledger, settings: Settings) -> None:
    """Report the cluster of the settings: machines without its kubeconfig push jobs for it.

    A kubeconfig alone asks for no request to its cluster: jobs of the store use it, or the settings
    name the substrate.
    """
    known = {one.host for one in list_machines(ledger.store) if one.is_cluster}
    if not known and settings.substrate != KUBERNETES:
        return
    cluster = find_cluster(settings)
    if settings.substrate != KUBERNETES and cluster.id not in known:
        return
    if machine := cluster.find_machine(cluster.id):
        report_machine(ledger.store, machine)


def find_cluster(settings: Settings) -> ClusterReader:
    """Return the cluster of the settings; the same object for the same settings and kubeconfig."""
    named = settings.kubernetes.kubeconfig or process_environment().get("KUBECONFIG", "")
    paths = [Path(one).expanduser() for one in (named or "~/.kube/config").split(os.pathsep)]
    times: list[object] = []
    for path in paths:
        with suppress(OSError):  # also text that is no path
            times.append((str(path), path.stat().st_mtime_ns))
    return _open(settings.kubernetes.model_dump_json(), str(times))


@lru_cache(maxsize=16)
def _open(settings: str, kubeconfigs: str) -> ClusterReader:
    _ = kubeconfigs  # the client reads them itself
    return ClusterReader(ClusterSettings.model_validate_json(settings))


def _explain(error: SubstrateError) -> str:
    """Return why the queue does not know the cluster, and what to do."""
    text = f"{error.message.rstrip('.')}. So the job does not wait in the queue of prefect-bt"
    if error.cause == Cause.FORBIDDEN:
        text += "; deployments/kubernetes/queue-rbac.yaml has the rights for that"
    return f"{text}. The cluster decides when its pods start, within patience_seconds."
