"""The scheduler: a node for every pod that fits on one, and why the others wait."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

from .events import record_event
from .objects import Store, condition, set_condition
from .quota import parse_quantity, requests
from .resources import CLAIMS, NODES, PODS, Obj, part, parts

_PREEMPTION = (
    "no new claims to deallocate, preemption: 0/{0} nodes are available: {0} Preemption is not"
    " helpful for scheduling."
)
_CORDONED: Obj = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def schedule(store: Store) -> None:
    """Give each pod that has no node one, or say why there is none."""
    for pod in store.all(PODS):
        if not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]:
            with store.changed:
                _place(store, pod)


def _place(store: Store, pod: Obj) -> None:
    reasons: Counter[str] = Counter()
    nodes = store.all(NODES)
    missing = _missing_claim(store, pod)
    for node in [] if missing else nodes:
        why = _why_not(store, pod, node)
        if not why:
            _bind(store, pod, node["metadata"]["name"])
            return
        reasons.update(why)
    _refuse(store, pod, reasons, len(nodes), missing)


def _bind(store: Store, pod: Obj, node: str) -> None:
    def bind(obj: Obj) -> None:
        obj["spec"]["nodeName"] = node
        set_condition(obj, "PodScheduled", True)

    meta = pod["metadata"]
    namespace, name = meta["namespace"], meta["name"]
    store.mutate(PODS, namespace, name, bind)
    message = f"Successfully assigned {namespace}/{name} to {node}"
    record_event(store, "Pod", pod, "Scheduled", message)


def _refuse(store: Store, pod: Obj, reasons: Counter[str], nodes: int, claim: str) -> None:
    said = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    message = f"0/{nodes} nodes are available: {said}. {_PREEMPTION.format(nodes)}"
    if claim:
        said = f'persistentvolumeclaim "{claim}" not found. not found'
        message = f"0/{nodes} nodes are available: {said}"
    if not nodes:
        message = "no nodes available to schedule pods"
    if condition(pod, "PodScheduled").get("message") == message:
        return
    more = {"reason": "Unschedulable", "message": message}

    def refuse(obj: Obj) -> None:
        set_condition(obj, "PodScheduled", False, **more)

    store.mutate(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], refuse)
    record_event(store, "Pod", pod, "FailedScheduling", message, type="Warning")


def _missing_claim(store: Store, pod: Obj) -> str:
    for volume in parts(pod["spec"], "volumes"):
        claim = part(volume, "persistentVolumeClaim").get("claimName", "")
        if claim and store.find(CLAIMS, pod["metadata"]["namespace"], claim) is None:
            return claim
    return ""


def _why_not(store: Store, pod: Obj, node: Obj) -> list[str]:
    """Return why the pod cannot be on the node; the first kind of reason alone, as a real one."""
    spec = pod["spec"]
    if node["spec"].get("unschedulable") and not _tolerates(spec, _CORDONED):
        return ["node(s) were unschedulable"]
    hard = [each for each in parts(node["spec"], "taints") if each["effect"] != "PreferNoSchedule"]
    if not all(_tolerates(spec, taint) for taint in hard):
        return ["node(s) had untolerated taint(s)"]
    labels = part(node["metadata"], "labels")
    chosen = part(spec, "nodeSelector").items() <= labels.items()
    if not chosen or not _has_affinity(spec, labels):
        return ["node(s) didn't match Pod's node affinity/selector"]
    return _insufficient(store, pod, node)


def _tolerates(spec: Obj, taint: Obj) -> bool:
    return any(
        each.get("key", taint["key"]) == taint["key"]
        and each.get("effect") in (None, "", taint["effect"])
        and (each.get("operator") == "Exists" or each.get("value", "") == taint.get("value", ""))
        for each in parts(spec, "tolerations")
    )


def _has_affinity(spec: Obj, labels: dict[str, str]) -> bool:
    """Tell whether the labels fit one of the terms of a required node affinity."""
    affinity = part(part(spec, "affinity"), "nodeAffinity")
    required = part(affinity, "requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    return any(
        all(_fits(labels, each) for each in parts(term, "matchExpressions"))
        for term in required["nodeSelectorTerms"]
    )


def _fits(labels: dict[str, str], expression: Obj) -> bool:
    key, operator = expression["key"], expression["operator"]
    if operator in ("In", "NotIn"):
        return (labels.get(key) in expression["values"]) == (operator == "In")
    return (key in labels) == (operator == "Exists")


def _insufficient(store: Store, pod: Obj, node: Obj) -> list[str]:
    free = {key: parse_quantity(value) for key, value in node["status"]["allocatable"].items()}
    name = node["metadata"]["name"]
    for other in store.all(PODS):
        over = other["status"]["phase"] in ("Succeeded", "Failed")
        if other["spec"].get("nodeName") == name and not over:
            free["pods"] -= 1
            for key, value in requests(other).items():
                free[key] = free.get(key, Decimal(0)) - value
    short = [key for key, value in requests(pod).items() if value > free.get(key, Decimal(0))]
    reasons = [f"Insufficient {key}" for key in short]
    return reasons if free["pods"] >= 1 else ["Too many pods", *reasons]
