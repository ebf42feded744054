"""Quantities, and the quotas that a new pod or Job must fit into."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from .objects import Store
from .resources import BY_NAME, PODS, QUOTAS, Obj, Resource, forbidden, part, parts

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_SMALL = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("0.001")}
_UNITS = {**_BINARY, **_SMALL, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_quantity(text: Any) -> Decimal:
    """Read `500m`, `2Gi`, `3`."""
    text = str(text)
    for unit, factor in _UNITS.items():
        if text.endswith(unit):
            return Decimal(text.removesuffix(unit)) * Decimal(factor)
    return Decimal(text)


def write_quantity(name: str, value: Decimal) -> str:
    if value != int(value):
        return f"{int(value * 1000)}m"
    for unit, factor in reversed(_BINARY.items()):
        if "memory" in name and value and value % factor == 0:
            return f"{int(value) // factor}{unit}"
    return str(int(value))


def requests(pod: Obj) -> dict[str, Decimal]:
    """Return what the pod asks of a node: its containers', or the largest init container's."""
    spec = pod["spec"]
    total: dict[str, Decimal] = {}
    for container in spec["containers"]:
        for name, value in part(container["resources"], "requests").items():
            total[name] = total.get(name, Decimal(0)) + parse_quantity(value)
    for container in parts(spec, "initContainers"):
        for name, value in part(container["resources"], "requests").items():
            total[name] = max(total.get(name, Decimal(0)), parse_quantity(value))
    return total


def check_quotas(store: Store, resource: Resource, obj: Obj) -> None:
    """Refuse what does not fit in a quota of its namespace."""
    namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
    for quota in store.all(QUOTAS, namespace):
        hard = {key: parse_quantity(value) for key, value in quota["spec"]["hard"].items()}
        wanted = {key: value for key, value in _charge(resource, obj).items() if key in hard}
        title = quota["metadata"]["name"]
        if resource == PODS and (missing := _unnamed(obj, hard)):
            said = "; ".join(f"{key} for: {where}" for key, where in missing.items())
            raise forbidden(resource, name, f"failed quota: {title}: must specify {said}")
        used = usage(store, namespace, hard)
        over = sorted(key for key, value in wanted.items() if used[key] + value > hard[key])
        if over:
            parts = (("requested", wanted), ("used", used), ("limited", hard))
            said = ", ".join(f"{word}: {_list(values, over)}" for word, values in parts)
            raise forbidden(resource, name, f"exceeded quota: {title}, {said}")


def usage(store: Store, namespace: str, names: Any) -> dict[str, Decimal]:
    """Return what the namespace uses now, of pods only those that have not ended."""
    used = {name: Decimal(0) for name in names}
    kinds = [PODS, *(r for r in BY_NAME.values() if f"count/{r.full_name}" in used and r != PODS)]
    for kind in kinds:
        for obj in store.all(kind, namespace):
            if obj.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                continue
            for name, value in _charge(kind, obj).items():
                if name in used:
                    used[name] += value
    return used


def update_quotas(store: Store) -> None:
    """Write what is used into the status of every quota."""
    for quota in store.all(QUOTAS):
        namespace, hard = quota["metadata"]["namespace"], quota["spec"]["hard"]
        used = usage(store, namespace, hard)
        status: Obj = {"hard": dict(hard)}
        status["used"] = {name: write_quantity(name, value) for name, value in used.items()}
        name = quota["metadata"]["name"]
        store.mutate(QUOTAS, namespace, name, lambda obj, new=status: obj.update(status=new))


def _charge(resource: Resource, obj: Obj) -> dict[str, Decimal]:
    charge = {f"count/{resource.full_name}": Decimal(1)}
    if resource == PODS:
        charge["pods"] = Decimal(1)
        charge |= {f"requests.{name}": value for name, value in requests(obj).items()}
        charge |= {
            name: value for name, value in requests(obj).items() if name in ("cpu", "memory")
        }
    return charge


def _unnamed(pod: Obj, hard: dict[str, Decimal]) -> dict[str, str]:
    """Return the limited resources that containers leave out, with those containers' names."""
    missing: dict[str, str] = {}
    for key in ("requests.cpu", "requests.memory"):
        names = [
            container["name"]
            for container in pod["spec"]["containers"]
            if key.partition(".")[2] not in part(container["resources"], "requests")
        ]
        if key in hard and names:
            missing[key] = ",".join(names)
    return missing


def _list(values: dict[str, Decimal], names: list[str]) -> str:
    return ",".join(f"{name}={write_quantity(name, values[name])}" for name in names)
