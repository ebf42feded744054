"""The steps of an object's creation after its checks: defaults, service account, quotas."""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import Any

from .api_errors import forbidden
from .resources import (
    ACCOUNTS,
    BY_NAME,
    CLAIMS,
    JOBS,
    PODS,
    QUOTAS,
    SECRETS,
    Obj,
    Resource,
    part,
    parts,
    place,
)
from .store import Store, is_over

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_UNITS = {**_BINARY, "m": Decimal("0.001"), "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def fill(resource: Resource, obj: Obj) -> None:
    """Set the defaults, but for those of a Job that need its uid (`label_job`)."""
    if resource == PODS:
        _fill_template(obj["spec"])
        asked = [{*part(each["resources"], "requests")} for each in obj["spec"]["containers"]]
        quality = "Burstable" if any({"cpu", "memory"} & names for names in asked) else "BestEffort"
        obj["status"] = {"phase": "Pending", "qosClass": quality}
    if resource == JOBS:
        spec = obj["spec"]
        policy = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
        _default(spec, completionMode="NonIndexed", suspend=False, backoffLimit=6, parallelism=1)
        _default(spec, manualSelector=False, podReplacementPolicy=policy)
        _default(spec, completions=spec["parallelism"])
        _fill_template(spec["template"]["spec"])
        obj["status"] = {}
    if resource == SECRETS:
        obj.setdefault("type", "Opaque")
        for name, text in part(obj, "stringData").items():
            obj.setdefault("data", {})[name] = base64.b64encode(text.encode()).decode()
        obj.pop("stringData", None)
    if resource == CLAIMS:
        obj["status"] = {"phase": "Bound", "accessModes": obj["spec"].get("accessModes", [])}


def label_job(job: Obj) -> None:
    """Set the selector and the labels of the Job's pods, which contain the Job's uid."""
    meta, spec = job["metadata"], job["spec"]
    own = {"controller-uid": meta["uid"], "job-name": meta["name"]}
    own |= {f"batch.kubernetes.io/{key}": value for key, value in own.items()}
    uid = "batch.kubernetes.io/controller-uid"
    spec["selector"] = {"matchLabels": {uid: meta["uid"]}}
    template: Obj = spec["template"].setdefault("metadata", {})
    template["labels"] = {**part(template, "labels"), **own}
    meta["labels"] = meta.get("labels") or dict(template["labels"])


def _fill_template(spec: Obj) -> None:
    _default(spec, restartPolicy="Always", terminationGracePeriodSeconds=30)
    for container in [*parts(spec, "initContainers"), *spec["containers"]]:
        tag = container["image"].rpartition("/")[2]
        is_moving = "@" not in tag and (":" not in tag or tag.endswith(":latest"))
        policy = "Always" if is_moving else "IfNotPresent"
        _default(container, imagePullPolicy=policy, resources={})
        if limits := container["resources"].get("limits"):
            given = part(container["resources"], "requests")
            container["resources"]["requests"] = {**limits, **given}


def _default(obj: Obj, **values: Any) -> None:
    for key, value in values.items():
        if obj.get(key) is None:
            obj[key] = value


def check_account(store: Store, pod: Obj) -> None:
    """Refuse a pod whose service account does not exist."""
    namespace, name = place(pod)
    account = pod["spec"].get("serviceAccountName") or "default"
    if store.find(ACCOUNTS, namespace, account) is None:
        missing = f'serviceaccount "{account}" not found'
        where = f"error looking up service account {namespace}/{account}"
        raise forbidden(PODS, name, f"{where}: {missing}")


# --- quantities and quotas


def parse_quantity(text: Any) -> Decimal:
    """Read a quantity such as `500m`, `2Gi` or `3`."""
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


def check_quotas(store: Store, resource: Resource, obj: Obj) -> None:
    """Refuse an object that exceeds a quota of its namespace."""
    namespace, name = place(obj)
    for quota in store.all(QUOTAS, namespace):
        hard = {key: parse_quantity(value) for key, value in quota["spec"]["hard"].items()}
        wanted = {key: value for key, value in _charge(resource, obj).items() if key in hard}
        title = quota["metadata"]["name"]
        used = _usage(store, namespace, hard)
        over = sorted(key for key, value in wanted.items() if used[key] + value > hard[key])
        if over:
            amounts = (("requested", wanted), ("used", used), ("limited", hard))
            said = ", ".join(f"{word}: {_list(values, over)}" for word, values in amounts)
            raise forbidden(resource, name, f"exceeded quota: {title}, {said}")


def _usage(store: Store, namespace: str, names: Any) -> dict[str, Decimal]:
    """Return what the namespace uses of these resources; pods that have ended do not count."""
    used = {name: Decimal(0) for name in names}
    for resource in BY_NAME.values():
        for obj in store.all(resource, namespace):
            if resource != PODS or not is_over(obj):
                for name, value in _charge(resource, obj).items():
                    if name in used:
                        used[name] += value
    return used


def _charge(resource: Resource, obj: Obj) -> dict[str, Decimal]:
    charge = {f"count/{resource.full_name}": Decimal(1)}
    if resource == PODS:
        charge["pods"] = Decimal(1)
        charge |= {f"requests.{name}": value for name, value in requests(obj).items()}
    return charge


def _list(values: dict[str, Decimal], names: list[str]) -> str:
    return ",".join(f"{name}={write_quantity(name, values[name])}" for name in names)
