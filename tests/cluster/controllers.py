"""The small controllers: garbage collection, namespaces, nodes that are gone, quotas."""

from __future__ import annotations

from .objects import Store, set_condition
from .quota import update_quotas
from .resources import NAMESPACES, NODES, PODS, Obj, Resource, parts
from .verbs import FOREGROUND, ORPHAN, Verbs


def collect_garbage(verbs: Verbs) -> None:
    """Delete what belongs to objects that are gone, and let go of owners that wait for that."""
    store = verbs.store
    everything = store.everything()
    uids = {obj["metadata"]["uid"] for _, obj in everything}
    for resource, obj in everything:
        finalizers = parts(obj["metadata"], "finalizers")
        if "deletionTimestamp" in obj["metadata"] and {ORPHAN, FOREGROUND} & set(finalizers):
            _finish_owner(verbs, resource, obj, everything)
        owners = {owner["uid"] for owner in parts(obj["metadata"], "ownerReferences")}
        if owners and not owners & uids:
            _delete(verbs, resource, obj)


def _finish_owner(
    verbs: Verbs, resource: Resource, owner: Obj, everything: list[tuple[Resource, Obj]]
) -> None:
    uid, finalizers = owner["metadata"]["uid"], owner["metadata"]["finalizers"]
    owned = [pair for pair in everything if _belongs(pair[1], uid)]
    if ORPHAN in finalizers:
        for kind, obj in owned:
            verbs.store.mutate(kind, *_where(obj), lambda each: _disown(each, uid))
    elif owned:
        for kind, obj in owned:
            _delete(verbs, kind, obj)
        return
    for name in (ORPHAN, FOREGROUND):
        remove_finalizer(verbs.store, resource, owner, name)


def _belongs(obj: Obj, uid: str) -> bool:
    return any(each["uid"] == uid for each in parts(obj["metadata"], "ownerReferences"))


def _disown(obj: Obj, uid: str) -> None:
    meta = obj["metadata"]
    meta["ownerReferences"] = [each for each in meta["ownerReferences"] if each["uid"] != uid]


def _where(obj: Obj) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _delete(verbs: Verbs, resource: Resource, obj: Obj) -> None:
    if "deletionTimestamp" not in obj["metadata"] and verbs.store.find(resource, *_where(obj)):
        verbs.delete(resource, _where(obj), {"propagationPolicy": "Background"})


def remove_finalizer(store: Store, resource: Resource, obj: Obj, name: str) -> None:
    def change(each: Obj) -> None:
        left = [other for other in parts(each["metadata"], "finalizers") if other != name]
        each["metadata"].pop("finalizers", None)
        if left:
            each["metadata"]["finalizers"] = left

    store.mutate(resource, *_where(obj), change)


def empty_namespaces(verbs: Verbs) -> None:
    """Delete all that is in a deleted namespace, then the namespace."""
    for namespace in verbs.store.all(NAMESPACES):
        if "deletionTimestamp" not in namespace["metadata"]:
            continue
        name = namespace["metadata"]["name"]
        verbs.store.mutate(NAMESPACES, "", name, _mark_terminating)
        inside = [pair for pair in verbs.store.everything() if _where(pair[1])[0] == name]
        for resource, obj in inside:
            _delete(verbs, resource, obj)
        if not inside:
            remove_finalizer(verbs.store, NAMESPACES, namespace, "kubernetes")


def _mark_terminating(namespace: Obj) -> None:
    namespace["status"] = {"phase": "Terminating"}


def collect_pods(verbs: Verbs) -> None:
    """Remove the pods of nodes that are no more, as failed ones."""
    nodes = {node["metadata"]["name"] for node in verbs.store.all(NODES)}
    for pod in verbs.store.all(PODS):
        if pod["spec"].get("nodeName", "") in ("", *nodes):
            continue
        verbs.store.mutate(PODS, *_where(pod), _fail)
        verbs.store.delete(PODS, *_where(pod), 0)


def _fail(pod: Obj) -> None:
    said = "PodGC: node no longer exists"
    set_condition(pod, "DisruptionTarget", True, reason="DeletionByPodGC", message=said)
    if pod["status"]["phase"] != "Succeeded":
        pod["status"]["phase"] = "Failed"


def turn(verbs: Verbs) -> None:
    """Do what is to be done now."""
    collect_pods(verbs)
    empty_namespaces(verbs)
    collect_garbage(verbs)
    update_quotas(verbs.store)
