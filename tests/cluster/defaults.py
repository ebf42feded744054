"""What a real API server fills into new objects."""

from __future__ import annotations

import base64
from typing import Any

from .objects import Store
from .resources import (
    ACCOUNTS,
    CLAIMS,
    JOBS,
    PODS,
    PRIORITIES,
    SECRETS,
    Obj,
    Resource,
    forbidden,
    part,
    parts,
)

_TOLERATED = ("not-ready", "unreachable")


def fill(resource: Resource, obj: Obj) -> None:
    """Set the defaults; of a Job also the selector and labels, which need its uid."""
    if resource == PODS:
        _fill_template(obj["spec"])
        obj["status"] = {"phase": "Pending", "qosClass": _quality(obj["spec"])}
    if resource == JOBS:
        _fill_job(obj)
    if resource == SECRETS:
        obj.setdefault("type", "Opaque")
        for name, text in part(obj, "stringData").items():
            obj.setdefault("data", {})[name] = base64.b64encode(text.encode()).decode()
        obj.pop("stringData", None)
    if resource == CLAIMS:
        obj["spec"].setdefault("volumeMode", "Filesystem")
        obj["status"] = {"phase": "Bound", "accessModes": obj["spec"].get("accessModes", [])}


def _fill_job(job: Obj) -> None:
    spec = job["spec"]
    policy = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    _default(spec, completionMode="NonIndexed", suspend=False, backoffLimit=6, parallelism=1)
    _default(spec, manualSelector=False, podReplacementPolicy=policy)
    _default(spec, completions=spec["parallelism"])
    _fill_template(spec["template"]["spec"])
    job["status"] = {}


def label_job(job: Obj) -> None:
    """Give the Job, which has its uid now, the selector and labels of its pods."""
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
    _default(spec, dnsPolicy="ClusterFirst", securityContext={}, schedulerName="default-scheduler")
    for container in [*parts(spec, "initContainers"), *spec["containers"]]:
        tag = container["image"].rpartition("/")[2]
        policy = "Always" if ":" not in tag or tag.endswith(":latest") else "IfNotPresent"
        policy = "IfNotPresent" if "@" in tag else policy
        _default(container, imagePullPolicy=policy, resources={})
        _default(container, terminationMessagePath="/dev/termination-log")
        _default(container, terminationMessagePolicy="File")
        limits = container["resources"].get("limits")
        if limits:
            given = part(container["resources"], "requests")
            container["resources"]["requests"] = {**limits, **given}


def _default(obj: Obj, **values: Any) -> None:
    for key, value in values.items():
        if obj.get(key) is None:
            obj[key] = value


def _quality(spec: Obj) -> str:
    kinds = {"cpu", "memory"}
    asked = [container["resources"] for container in spec["containers"]]
    if not any(kinds & {*part(each, "requests")} for each in asked):
        return "BestEffort"
    whole = all(
        kinds <= {*part(each, "limits")}
        and all(each["limits"][kind] == each["requests"][kind] for kind in kinds)
        for each in asked
    )
    return "Guaranteed" if whole else "Burstable"


def admit_pod(store: Store, pod: Obj) -> None:
    """Set what admission sets, and refuse accounts and priorities that are not there."""
    spec, namespace = pod["spec"], pod["metadata"]["namespace"]
    account = spec.get("serviceAccountName") or "default"
    name = pod["metadata"]["name"]
    if store.find(ACCOUNTS, namespace, account) is None:
        missing = f'serviceaccount "{account}" not found'
        where = f"error looking up service account {namespace}/{account}"
        raise forbidden(PODS, name, f"{where}: {missing}")
    _default(spec, serviceAccountName=account, serviceAccount=account, enableServiceLinks=True)
    level = spec.get("priorityClassName")
    found = store.find(PRIORITIES, "", level) if level else {"value": 0}
    if found is None:
        raise forbidden(PODS, name, f"no PriorityClass with name {level} was found")
    spec["priority"] = found["value"]
    spec["preemptionPolicy"] = found.get("preemptionPolicy", "PreemptLowerPriority")
    tolerations: list[Obj] = spec.setdefault("tolerations", [])
    for problem in _TOLERATED:
        key = f"node.kubernetes.io/{problem}"
        if not any(each.get("key") == key for each in tolerations):
            each: Obj = {"key": key, "operator": "Exists", "effect": "NoExecute"}
            tolerations.append({**each, "tolerationSeconds": 300})
