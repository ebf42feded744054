"""What the API server does with objects, apart from HTTP: list, create, patch, delete, evict."""

from __future__ import annotations

import copy
from typing import Any

from .admission import check_quotas, fill
from .api_errors import bad_request
from .checks import check
from .resources import JOBS, NAMESPACES, PODS, Obj, Resource, as_object, parts, place
from .store import Store, is_over, random_letters, set_condition


class Verbs:
    """Checks and applies the changes of objects that users and controllers ask for."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def create(self, resource: Resource, namespace: str, given: Any) -> Obj:
        if not isinstance(given, dict):
            raise bad_request("the body of the request was not an object")
        obj = copy.deepcopy(as_object(given))
        meta = obj.setdefault("metadata", {})
        if resource.namespaced:
            if meta.setdefault("namespace", namespace) != namespace:
                said = "the namespace of the provided object does not match the namespace sent on"
                raise bad_request(f"{said} the request")
            self.store.get(NAMESPACES, "", namespace)
        check(resource, obj)
        meta.setdefault("name", meta.get("generateName", "") + random_letters())
        fill(resource, obj)
        with self.store.changed:
            if resource == PODS and self.store.find(resource, *place(obj)) is None:
                check_quotas(self.store, obj)
            return self.store.create(resource, obj)

    def patch(self, resource: Resource, namespace: str, name: str, given: Any) -> Obj:
        """Merge into the object; null removes a field."""
        with self.store.changed:
            old = self.store.get(resource, namespace, name)
            new = as_object(merge(copy.deepcopy(old), given))
            new.pop("status", None)
            check(resource, new)
            if "status" in old:
                new["status"] = old["status"]

            def assign(obj: Obj) -> None:
                obj.clear()
                obj.update(new)

            return self.store.mutate(resource, namespace, name, assign) or new

    def delete(self, resource: Resource, namespace: str, name: str, options: Obj) -> Obj:
        """Return the object if it is a pod or only got a deletionTimestamp, else a Status."""
        with self.store.changed:
            old = self.store.get(resource, namespace, name)
            if resource == JOBS and options.get("propagationPolicy") != "Background":
                raise bad_request("only the propagation policy Background deletes a Job's pods")
            grace = _grace(old, options) if resource == PODS else 0
            last = self.store.delete(resource, namespace, name, grace) or old
            left = self.store.find(resource, namespace, name)
        if left is not None or resource == PODS:
            return left or last
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    def evict(self, namespace: str, name: str) -> Obj:
        """Set the pod's condition DisruptionTarget and delete it."""

        def mark(pod: Obj) -> None:
            said = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
            set_condition(pod, "DisruptionTarget", True, **said)

        self.store.mutate(PODS, namespace, name, mark)
        self.delete(PODS, namespace, name, {})
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return {**status, "code": 201}


def owners_of(obj: Obj) -> list[Obj]:
    return parts(obj["metadata"], "ownerReferences")


def merge(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch."""
    if not isinstance(patch, dict):
        return patch
    result, changes = as_object(target), as_object(patch)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def _grace(pod: Obj, options: Obj) -> int:
    """Return how many seconds the pod has to end; none if it has ended or never began."""
    if is_over(pod) or not pod["spec"].get("nodeName"):
        return 0
    given = options.get("gracePeriodSeconds")
    return pod["spec"]["terminationGracePeriodSeconds"] if given is None else int(given)
