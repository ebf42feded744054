"""The garbage collector and the scheduler."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

from .admission import parse_quantity, requests
from .resources import NODES, PODS, Obj, part, parts, place
from .store import Store, condition, is_deleted, is_over, record_event, set_condition
from .verbs import Verbs, owners_of

_PREEMPTION = (
    "no new claims to deallocate, preemption: 0/{0} nodes are available: {0} Preemption is not"
    " helpful for scheduling."
)
_CORDONED: Obj = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def collect_garbage(verbs: Verbs) -> None:
    """Delete the objects all of whose owners are gone."""
    everything = verbs.store.everything()
    uids = {obj["metadata"]["uid"] for _, obj in everything}
    for resource, obj in everything:
        owners = {owner["uid"] for owner in owners_of(obj)}
        if owners and not owners & uids and not is_deleted(obj):
            verbs.delete(resource, *place(obj), {"propagationPolicy": "Background"})


def schedule(store: Store) -> None:
    """Bind each pod without a node to one, or write in its condition why none fits."""
    for pod in store.all(PODS):
        if not pod["spec"].get("nodeName") and not is_deleted(pod):
            with store.changed:
                _schedule_pod(store, pod)


def _schedule_pod(store: Store, pod: Obj) -> None:
    nodes, reasons = store.all(NODES), Counter[str]()
    for node in nodes:
        why = _why_not(store, pod, node)
        if not why:
            _bind(store, pod, node["metadata"]["name"])
            return
        reasons.update(why)
    said = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    preemption = _PREEMPTION.format(len(nodes))
    _refuse(store, pod, f"0/{len(nodes)} nodes are available: {said}. {preemption}")


def _bind(store: Store, pod: Obj, node: str) -> None:
    def bind(obj: Obj) -> None:
        obj["spec"]["nodeName"] = node
        set_condition(obj, "PodScheduled", True)

    store.mutate(PODS, *place(pod), bind)
    message = f"Successfully assigned {'/'.join(place(pod))} to {node}"
    record_event(store, "Pod", pod, "Scheduled", message)


def _refuse(store: Store, pod: Obj, message: str) -> None:
    if condition(pod, "PodScheduled").get("message") == message:
        return
    more = {"reason": "Unschedulable", "message": message}
    store.mutate(PODS, *place(pod), lambda obj: set_condition(obj, "PodScheduled", False, **more))
    record_event(store, "Pod", pod, "FailedScheduling", message, type="Warning")


def _why_not(store: Store, pod: Obj, node: Obj) -> list[str]:
    """Return why the pod cannot be on the node: only the first kind of reason, as a real one."""
    spec = pod["spec"]
    if node["spec"].get("unschedulable") and not _tolerates(spec, _CORDONED):
        return ["node(s) were unschedulable"]
    if not all(_tolerates(spec, taint) for taint in parts(node["spec"], "taints")):
        return ["node(s) had untolerated taint(s)"]
    if not part(spec, "nodeSelector").items() <= part(node["metadata"], "labels").items():
        return ["node(s) didn't match Pod's node affinity/selector"]
    return _insufficient(store, pod, node)


def _tolerates(spec: Obj, taint: Obj) -> bool:
    return any(
        each.get("key", taint["key"]) == taint["key"]
        and each.get("effect") in (None, "", taint["effect"])
        and (each.get("operator") == "Exists" or each.get("value", "") == taint.get("value", ""))
        for each in parts(spec, "tolerations")
    )


def _insufficient(store: Store, pod: Obj, node: Obj) -> list[str]:
    free = {key: parse_quantity(value) for key, value in node["status"]["allocatable"].items()}
    for other in store.all(PODS):
        if other["spec"].get("nodeName") == node["metadata"]["name"] and not is_over(other):
            for key, value in requests(other).items():
                free[key] = free.get(key, Decimal(0)) - value
    asked = requests(pod)
    return [f"Insufficient {key}" for key in asked if asked[key] > free.get(key, Decimal(0))]
