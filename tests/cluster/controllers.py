"""The garbage collector and the scheduler."""

from __future__ import annotations

from decimal import Decimal

from .admission import parse_quantity, requests
from .resources import NODES, PODS, Obj, place
from .store import Store, is_deleted, is_over
from .verbs import Verbs, owners_of


def collect_garbage(verbs: Verbs) -> None:
    """Delete the objects all of whose owners are gone."""
    everything = verbs.store.everything()
    uids = {obj["metadata"]["uid"] for _, obj in everything}
    for resource, obj in everything:
        owners = {owner["uid"] for owner in owners_of(obj)}
        if owners and not owners & uids and not is_deleted(obj):
            verbs.delete(resource, *place(obj), {"propagationPolicy": "Background"})


def schedule(store: Store) -> None:
    """Bind each pod without a node to one that is not cordoned and has room for it."""
    for pod in store.all(PODS):
        if not pod["spec"].get("nodeName") and not is_deleted(pod):
            node = next((node for node in store.all(NODES) if _fits(store, pod, node)), None)
            if node:
                _bind(store, pod, node["metadata"]["name"])


def _bind(store: Store, pod: Obj, node: str) -> None:
    store.mutate(PODS, *place(pod), lambda obj: obj["spec"].update(nodeName=node))


def _fits(store: Store, pod: Obj, node: Obj) -> bool:
    free = {key: parse_quantity(value) for key, value in node["status"]["allocatable"].items()}
    for other in store.all(PODS):
        if other["spec"].get("nodeName") == node["metadata"]["name"] and not is_over(other):
            for key, value in requests(other).items():
                free[key] = free.get(key, Decimal(0)) - value
    has_room = all(value <= free.get(key, Decimal(0)) for key, value in requests(pod).items())
    return has_room and not node["spec"].get("unschedulable")
