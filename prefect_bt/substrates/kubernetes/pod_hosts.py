"""Read what the machines of a cluster have free for pods: two lists, of nodes and of pods.

The user needs the rights of deployments/kubernetes/queue-rbac.yaml.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import lru_cache
from importlib import import_module
from typing import Any, Final, cast

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

Amounts = dict[str, Decimal]
PAGE: Final = 500
"""Objects in one answer."""
UNKNOWN_GPU: Final = "GPU"
"""Type of GPUs whose machines have no label with their product."""
_PRODUCT: Final = "nvidia.com/gpu.product"
_CORDONED: Final = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_RUNNING: Final = "status.phase!=Succeeded,status.phase!=Failed"
_LASTING: Final = frozenset({"DaemonSet", "Node"})
"""Kinds of the owners of pods that remain on their machine."""


def read_pod_hosts(client: ClusterClient, settings: ClusterSettings) -> tuple[PodHost, ...]:
    """Return the machines on which pods with these settings may run. ClusterError."""
    nodes = list(_iter_items(client, "nodes", {}))
    pods: dict[str, list[Json]] = defaultdict(list)
    for pod in _iter_items(client, "pods", {"fieldSelector": _RUNNING}):
        if name := pod["spec"].get("nodeName"):
            pods[name].append(pod)
    template = _render_template(Resources(), settings)
    hosts = (_read_host(one, pods[one["metadata"]["name"]], template, settings) for one in nodes)
    return tuple(host for host in hosts if host is not None)


def measure_pod(resources: Resources, settings: ClusterSettings) -> tuple[float, int]:
    """Return the CPUs and the memory that each pod of a job requests."""
    requests = sum_requests(_render_template(resources, settings))
    return float(requests.get("cpu", 0)), int(requests.get("memory", 0))


def sum_requests(spec: Json) -> Amounts:
    """Return what a pod with this specification requests."""
    first = _list(spec, "initContainers")
    sidecars = [one for one in first if one.get("restartPolicy") == "Always"]
    total = _add_requests([*spec["containers"], *sidecars])
    for one in first:
        for name, amount in _add_requests([one]).items():
            total[name] = max(total.get(name, Decimal(0)), amount)
    for name, text in _part(spec, "overhead").items():
        total[name] = total.get(name, Decimal(0)) + parse_amount(str(text))
    return total


@lru_cache(maxsize=4096)
def parse_amount(text: str) -> Decimal:
    """Return the number of a quantity such as `500m` or `2Gi`."""
    quantity: Any = import_module("kubernetes.utils.quantity")
    return quantity.parse_quantity(text)


def _iter_items(client: ClusterClient, kind: str, query: dict[str, str | int]) -> Iterator[Json]:
    """Yield the objects of all namespaces."""
    query = {**query, "limit": PAGE}
    while True:
        action = f"list the {kind} of the cluster"
        page = client.request("GET", f"/api/v1/{kind}", query=query, action=action)
        yield from page["items"]
        query["continue"] = page["metadata"].get("continue") or ""
        if not query["continue"]:
            return


def _render_template(resources: Resources, settings: ClusterSettings) -> Json:
    """Return the parts of the specification of a pod that decide where it may run."""
    commands = {"name": COMMANDS, "resources": render_resources(resources, settings)}
    spec = {
        "nodeSelector": settings.node_selector,
        "tolerations": settings.tolerations,
        "containers": [{"name": AGENT, "resources": {"requests": AGENT_REQUESTS}}, commands],
    }
    job = merge({"spec": {"template": {"spec": spec}}}, settings.job_patch)
    return job["spec"]["template"]["spec"]


def _add_requests(containers: Iterable[Json]) -> Amounts:
    total: Amounts = {}
    for one in containers:
        for name, text in _part(_part(one, "resources"), "requests").items():
            total[name] = total.get(name, Decimal(0)) + parse_amount(str(text))
    return total


def _read_host(
    node: Json, pods: list[Json], template: Json, settings: ClusterSettings
) -> PodHost | None:
    """Return the machine; None if no pod with this template may run there."""
    labels = _part(node["metadata"], "labels")
    has = {n: parse_amount(str(text)) for n, text in node["status"]["allocatable"].items()}
    gpu_type = _find_gpu_type(labels, has, settings)
    resource = settings.gpu_resources.get(gpu_type, GPU_RESOURCE)
    refused = [one for one in _list_taints(node) if not _is_tolerated(one, template)]
    for_gpus = bool(gpu_type) and all(_is_of_gpus(one, resource) for one in refused)
    if (refused and not for_gpus) or not template["nodeSelector"].items() <= labels.items():
        return None
    requests = [(_is_lasting(pod), sum_requests(pod["spec"])) for pod in pods]
    total = _subtract(has, (amounts for is_lasting, amounts in requests if is_lasting))
    free = _subtract(total, (amounts for is_lasting, amounts in requests if not is_lasting))
    jobs = Counter(str(_part(pod["metadata"], "labels").get(LABEL_JOB, "")) for pod in pods)
    del jobs[""]
    names = {CPUS: ("cpu", 1000), MEMORY: ("memory", 1)}
    if gpu_type:
        names[gpu_type] = resource, 1
    return PodHost(
        {name: int(total[key] * factor) for name, (key, factor) in names.items()},
        {name: int(free[key] * factor) for name, (key, factor) in names.items()},
        dict(jobs),
        for_gpus=bool(refused),
    )


def _find_gpu_type(labels: Json, has: Amounts, settings: ClusterSettings) -> str:
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
    model = str(labels.get(_PRODUCT, "")).replace("-", " ")
    return parse_gpu_model(model) or UNKNOWN_GPU


def _list_taints(node: Json) -> list[Json]:
    """Return the taints that keep pods away."""
    spec = _part(node, "spec")
    taints = [one for one in _list(spec, "taints") if one["effect"] != "PreferNoSchedule"]
    return [*taints, _CORDONED] if spec.get("unschedulable") else taints


def _is_tolerated(taint: Json, template: Json) -> bool:
    return any(
        one.get("key") in (None, "", taint["key"])
        and one.get("effect") in (None, "", taint["effect"])
        and (one.get("operator") == "Exists" or one.get("value", "") == taint.get("value", ""))
        for one in template["tolerations"]
    )


def _is_of_gpus(taint: Json, resource: str) -> bool:
    """Return whether the pods of jobs with GPUs tolerate the taint (pod_manifest)."""
    return taint["key"] == resource and taint["effect"] == "NoSchedule"


def _is_lasting(pod: Json) -> bool:
    return any(one["kind"] in _LASTING for one in _list(pod["metadata"], "ownerReferences"))


def _part(value: Json, name: str) -> Json:
    return cast("Json", value.get(name) or {})


def _list(value: Json, name: str) -> list[Json]:
    return cast("list[Json]", value.get(name) or [])


def _subtract(amounts: Amounts, requests: Iterable[Amounts]) -> Amounts:
    left = dict(amounts)
    for one in requests:
        for name, amount in one.items():
            left[name] = left.get(name, Decimal(0)) - amount
    return left
