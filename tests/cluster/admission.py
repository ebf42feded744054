"""The steps of an object's creation after its checks: defaults and quotas."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from .api_errors import forbidden
from .resources import JOBS, PODS, QUOTAS, Obj, Resource, part, parts, place
from .store import Store, is_over

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_UNITS = {**_BINARY, "m": Decimal("0.001"), "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def fill(resource: Resource, obj: Obj) -> None:
    """Set the defaults that the small cluster reads."""
    if resource == PODS:
        obj["spec"].setdefault("terminationGracePeriodSeconds", 30)
        for container in [*parts(obj["spec"], "initContainers"), *obj["spec"]["containers"]]:
            container.setdefault("resources", {})
        obj["status"] = {"phase": "Pending"}
    if resource == JOBS:
        obj["spec"].setdefault("suspend", False)
        obj["status"] = {}


# --- quantities and quotas


def parse_quantity(text: Any) -> Decimal:
    """Read a quantity such as `500m`, `2Gi` or `3`."""
    text = str(text)
    for unit, factor in _UNITS.items():
        if text.endswith(unit):
            return Decimal(text.removesuffix(unit)) * Decimal(factor)
    return Decimal(text)


def requests(pod: Obj) -> dict[str, Decimal]:
    """Return the pod's requests: the sum of its containers', or an init container's if larger."""
    spec = pod["spec"]
    total: dict[str, Decimal] = {}
    for container in spec["containers"]:
        for name, value in part(container["resources"], "requests").items():
            total[name] = total.get(name, Decimal(0)) + parse_quantity(value)
    for container in parts(spec, "initContainers"):
        for name, value in part(container["resources"], "requests").items():
            total[name] = max(total.get(name, Decimal(0)), parse_quantity(value))
    return total


def check_quotas(store: Store, pod: Obj) -> None:
    """Refuse a pod that exceeds a quota of its namespace for the number of pods."""
    namespace, name = place(pod)
    for quota in store.all(QUOTAS, namespace):
        limit = int(quota["spec"]["hard"]["pods"])
        used = sum(not is_over(each) for each in store.all(PODS, namespace))
        if used >= limit:
            amounts = f"requested: pods=1, used: pods={used}, limited: pods={limit}"
            raise forbidden(PODS, name, f"exceeded quota: {quota['metadata']['name']}, {amounts}")
