"""Read what the machines of a cluster have free for pods: two lists, of nodes and of pods.

The user needs the rights of deployments/kubernetes/queue-rbac.yaml. Amounts are in thousandths.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from math import ceil
from typing import Any, Final

from prefect_bt.host.gpu_reservation import parse_gpu_model
from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.ledger.records import Resources
from prefect_bt.substrates.kubernetes.client import ClusterClient
from prefect_bt.substrates.kubernetes.json_merge import Json, merge
from prefect_bt.substrates.kubernetes.names import AGENT, COMMANDS, LABEL_JOB
from prefect_bt.substrates.kubernetes.pod_manifest import (
    AGENT_REQUESTS,
    GPU_RESOURCE,
    render_resources,
)
from prefect_bt.substrates.protocol import CPUS, MEMORY, PodHost

PAGE: Final = 500
"""Objects in one answer."""
UNKNOWN_GPU: Final = "GPU"
"""Type of GPUs whose machines have no label with their product."""
_PRODUCT: Final = "nvidia.com/gpu.product"
_HARD: Final = "NoSchedule"
_CORDONED: Final = {"key": "node.kubernetes.io/unschedulable", "effect": _HARD}
_RUNNING: Final = "status.phase!=Succeeded,status.phase!=Failed"
_LASTING: Final = frozenset({"DaemonSet", "Node"})
"""Kinds of the owners of pods that remain on their machine."""


def read_pod_hosts(client: ClusterClient, settings: ClusterSettings) -> tuple[PodHost, ...]:
    """Return the machines on which pods with these settings may run. ClusterError.

    A machine that is closed to new pods, and has some of prefect-bt, has no amounts.
    """
    nodes = list(_iter_items(client, "nodes", {}))
    pods: dict[str, list[Any]] = defaultdict(list)
    for pod in _iter_items(client, "pods", {"fieldSelector": _RUNNING}):
        pods[pod["spec"].get("nodeName", "")].append(pod)
    template = _render_template(Resources(), settings)
    hosts = (_read_host(one, pods[one["metadata"]["name"]], template, settings) for one in nodes)
    return tuple(host for host in hosts if host is not None)


def measure_pod(resources: Resources, settings: ClusterSettings) -> tuple[int, int]:
    """Return the thousandths of a CPU and the bytes of memory that each pod of a job requests."""
    requests = sum_requests(_render_template(resources, settings))
    return requests["cpu"], requests["memory"] // 1000


def sum_requests(spec: Any) -> Counter[str]:
    """Return what a pod with this specification requests."""
    first: list[Any] = spec.get("initContainers", [])
    lasting = [*spec["containers"], *(one for one in first if one.get("restartPolicy") == "Always")]
    total = Counter[str]()
    for container in lasting:
        total.update(_requests_of(container))
    for container in first:
        total |= Counter(_requests_of(container))
    total = Counter(dict(total) | _requests_of(spec))  # those of the whole pod count instead
    total.update(_parse_amounts(spec.get("overhead", {})))
    return total


def _requests_of(container: Any) -> dict[str, int]:
    return _parse_amounts(container.get("resources", {}).get("requests", {}))


def _parse_amounts(quantities: Any) -> dict[str, int]:
    return {name: parse_amount(str(text)) for name, text in quantities.items()}


@lru_cache(maxsize=4096)
def parse_amount(text: str) -> int:
    """Return the thousandths in a quantity such as `500m` or `2Gi`."""
    quantity: Any = import_module("kubernetes.utils.quantity")
    return ceil(1000 * quantity.parse_quantity(text))


def _iter_items(client: ClusterClient, kind: str, query: dict[str, str | int]) -> Iterator[Any]:
    """Yield the objects of all namespaces."""
    query, action = {**query, "limit": PAGE}, f"list the {kind} of the cluster"
    while True:
        page = client.request("GET", f"/api/v1/{kind}", query=query, action=action)
        yield from page["items"]
        query["continue"] = page["metadata"].get("continue", "")
        if not query["continue"]:
            return


def _render_template(resources: Resources, settings: ClusterSettings) -> Any:
    """Return the parts of the specification of a pod that decide where it may run."""
    commands = {"name": COMMANDS, "resources": render_resources(resources, settings)}
    spec = {
        "nodeSelector": settings.node_selector,
        "tolerations": settings.tolerations,
        "containers": [{"name": AGENT, "resources": {"requests": AGENT_REQUESTS}}, commands],
    }
    job = merge({"spec": {"template": {"spec": spec}}}, settings.job_patch)
    return job["spec"]["template"]["spec"]


def _read_host(
    node: Any, pods: list[Any], template: Any, settings: ClusterSettings
) -> PodHost | None:
    """Return the machine; None if no pod of prefect-bt is there or may be."""
    labels = node["metadata"].get("labels", {})
    has = _parse_amounts(node["status"].get("allocatable", {}))
    gpu_type = _find_gpu_type(labels, has, settings)
    resource = settings.gpu_resources.get(gpu_type, GPU_RESOURCE)
    refused = [one for one in _iter_taints(node["spec"]) if not _is_tolerated(one, template)]
    # The pods of jobs with GPUs tolerate the taint of GPU machines (pod_manifest).
    only_gpus = gpu_type and all((x["key"], x["effect"]) == (resource, _HARD) for x in refused)
    jobs = Counter(str(pod["metadata"].get("labels", {}).get(LABEL_JOB, "")) for pod in pods)
    del jobs[""]
    if (refused and not only_gpus) or not _is_selected(labels, template):
        return PodHost({}, {}, dict(jobs)) if jobs else None
    total, free = Counter(has), Counter(has)
    for pod in pods:
        requests = sum_requests(pod["spec"])
        free.subtract(requests)
        if any(one["kind"] in _LASTING for one in pod["metadata"].get("ownerReferences", [])):
            total.subtract(requests)
    names = {CPUS: "cpu", MEMORY: "memory", **({gpu_type: resource} if gpu_type else {})}
    return PodHost(_choose(total, names), _choose(free, names), dict(jobs), bool(refused))


def _choose(amounts: Mapping[str, int], names: Mapping[str, str]) -> dict[str, int]:
    """Return the amounts under our names, at least 0; only those of CPUs remain thousandths."""
    found = {name: amounts[key] // (1 if name == CPUS else 1000) for name, key in names.items()}
    return {name: max(0, amount) for name, amount in found.items()}


def _find_gpu_type(labels: Json, has: Mapping[str, int], settings: ClusterSettings) -> str:
    """Return the type of the GPUs as definitions name it; "" for a machine without GPUs."""
    for name, selector in settings.accelerator_selectors.items():
        resource = settings.gpu_resources.get(name, GPU_RESOURCE)
        if has.get(resource) and selector.items() <= labels.items():
            return name
    for name, resource in settings.gpu_resources.items():
        if resource != GPU_RESOURCE and has.get(resource):
            return name
    if not has.get(GPU_RESOURCE):
        return ""
    return parse_gpu_model(str(labels.get(_PRODUCT, "")).replace("-", " ")) or UNKNOWN_GPU


def _is_selected(labels: Json, template: Any) -> bool:
    return template.get("nodeSelector", {}).items() <= labels.items()


def _iter_taints(spec: Any) -> Iterator[Any]:
    """Yield the taints that keep pods away."""
    taints: Iterable[Any] = spec.get("taints", [])
    yield from (one for one in taints if one["effect"] != "PreferNoSchedule")
    if spec.get("unschedulable"):
        yield _CORDONED


def _is_tolerated(taint: Any, template: Any) -> bool:
    return any(
        one.get("key") in (None, "", taint["key"])
        and one.get("effect") in (None, "", taint["effect"])
        and (one.get("operator") == "Exists" or one.get("value", "") == taint.get("value", ""))
        for one in template.get("tolerations", [])
    )
