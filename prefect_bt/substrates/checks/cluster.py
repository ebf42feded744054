"""Checks of a cluster that need no pod: the API server, the user's rights, machines and GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.substrates.kubernetes.client import ClusterClient
from prefect_bt.substrates.kubernetes.pod_hosts import read_pod_hosts
from prefect_bt.substrates.protocol import CPUS, MEMORY, CheckResult, CheckStatus

RIGHTS: Final = (
    ("batch", "jobs", ("create", "get", "list", "patch", "delete")),
    ("", "pods", ("list", "watch", "delete", "deletecollection")),
    ("", "secrets", ("create",)),
    ("", "services", ("create",)),
    ("", "events", ("list",)),
)
"""API group, resource and verbs that every job needs (deployments/kubernetes/rbac.yaml)."""
CLAIM_RIGHT: Final = ("", "persistentvolumeclaims", ("create",))
"""Needed with cache_storage_class."""
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def check_cluster(client: ClusterClient, settings: ClusterSettings) -> Iterator[CheckResult]:
    """Yield the results. ClusterError if the API server does not answer."""
    version = client.request("GET", "/version", action="read its version")
    detail = f"{version.get('gitVersion', '?')} at {client.server}, namespace {client.namespace}"
    yield CheckResult("API server", CheckStatus.PASSED, detail)
    yield _check_rights(client, settings)
    yield from _check_machines(client, settings)


def _check_rights(client: ClusterClient, settings: ClusterSettings) -> CheckResult:
    needed = (*RIGHTS, CLAIM_RIGHT) if settings.cache_storage_class else RIGHTS
    missing = [
        f"{verb} {resource}"
        for group, resource, verbs in needed
        for verb in verbs
        if not _is_allowed(client, group, resource, verb, client.namespace)
    ]
    if missing:
        step = "Apply deployments/kubernetes/rbac.yaml for the user of the kubeconfig."
        detail = f"the user may not {', '.join(missing)} in {client.namespace}."
        return CheckResult("Rights", CheckStatus.FAILED, detail, step)
    return CheckResult("Rights", CheckStatus.PASSED, "the user may create and remove jobs")


def _is_allowed(
    client: ClusterClient, group: str, resource: str, verb: str, namespace: str
) -> bool:
    """Return whether the user has a right in a namespace; "" for all namespaces."""
    attributes = {
        "namespace": namespace,
        "group": group,
        "resource": resource,
        "verb": verb,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer: Any = client.request("POST", _REVIEWS, body=review, action="review the user's rights")
    return bool(answer["status"].get("allowed"))


def _check_machines(client: ClusterClient, settings: ClusterSettings) -> Iterator[CheckResult]:
    """Yield machines and GPUs, of which only those count on which pods of jobs may run."""
    if not all(_is_allowed(client, "", resource, "list", "") for resource in ("nodes", "pods")):
        detail = "the user may not list them (deployments/kubernetes/queue-rbac.yaml)"
        yield CheckResult("Machines", CheckStatus.SKIPPED, detail)
        return
    hosts = [host for host in read_pod_hosts(client, settings) if host.total]
    if not hosts:
        step = "Add machines, or correct node_selector and tolerations of the block."
        detail = "none is ready for pods with these settings."
        yield CheckResult("Machines", CheckStatus.FAILED, detail, step)
        return
    cpus = sum(host.total.get(CPUS, 0) for host in hosts) / 1000
    memory = sum(host.total.get(MEMORY, 0) for host in hosts) / 1024**3
    detail = f"{len(hosts)} for pods, with {cpus:g} CPUs and {memory:.0f} GiB"
    yield CheckResult("Machines", CheckStatus.PASSED, detail)
    gpus = Counter[str]()
    for host in hosts:
        gpus.update({k: n for k, n in host.total.items() if k not in {CPUS, MEMORY}})
    shown = ", ".join(f"{count} x {kind}" for kind, count in gpus.items())
    yield CheckResult("GPUs", CheckStatus.PASSED, shown or "the cluster offers none")
