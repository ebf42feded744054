"""What the API server does with objects, apart from HTTP: create, replace, patch, delete, evict."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from .changes import assign, check_fixed, merge, stored_state
from .defaults import admit_pod, fill, label_job
from .objects import Store, has_condition, matches_fields, matches_labels, random_letters
from .objects import set_condition as put_condition
from .quota import check_quotas
from .resources import (
    ACCOUNTS,
    EVICTIONS,
    JOBS,
    NAMESPACES,
    PODS,
    ApiError,
    Cause,
    Obj,
    Resource,
    as_object,
    bad_request,
    conflict,
    details_of,
    forbidden,
    invalid,
    not_found,
    part,
)
from .schemas import check

ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
_FINALIZERS = {"Orphan": ORPHAN, "Foreground": FOREGROUND}
_POLICIES = ("Foreground", "Background", "Orphan")
_OPTIONS = Resource("deleteoptions", "DeleteOptions", "meta.k8s.io")


class Verbs:
    """Changes objects as users and controllers ask for it, and refuses what must be refused."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.denied: str = ""
        """What the admission webhook says to every new pod; empty when it lets them in."""

    def select(self, resource: Resource, namespace: str, query: dict[str, str]) -> list[Obj]:
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        nothing: Obj = {"metadata": {}}
        for matches, selector in ((matches_labels, labels), (matches_fields, fields)):
            matches(nothing, selector)  # refuses those that cannot be read, also without objects
        found = self.store.all(resource, namespace)
        return [obj for obj in found if matches_labels(obj, labels) and matches_fields(obj, fields)]

    def create(self, resource: Resource, namespace: str, given: Any) -> Obj:
        obj = _placed(resource, namespace, given)
        if resource.namespaced:
            self._need_namespace(resource, obj)
        check(resource, obj)
        meta = obj["metadata"]
        meta.setdefault("name", meta.get("generateName", "") + random_letters())
        for key in ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"):
            meta.pop(key, None)
        fill(resource, obj)
        with self.store.changed:
            if self.store.find(resource, namespace, meta["name"]) is None and resource.namespaced:
                self._admit(resource, obj)
            made = self.store.create(resource, obj)
            if resource == JOBS:
                label_job(made)
        if resource == NAMESPACES:
            self._fill_namespace(meta["name"])
        return made

    def _need_namespace(self, resource: Resource, obj: Obj) -> None:
        meta = obj["metadata"]
        found = self.store.get(NAMESPACES, "", meta["namespace"])
        if "deletionTimestamp" in found["metadata"]:
            why = f"unable to create new content in namespace {meta['namespace']} because it is"
            raise forbidden(resource, meta.get("name", ""), f"{why} being terminated")

    def _admit(self, resource: Resource, obj: Obj) -> None:
        if resource == PODS:
            admit_pod(self.store, obj)
            if self.denied:
                said = f'admission webhook "w" denied the request: {self.denied}'
                raise ApiError(403, "Forbidden", said)
        check_quotas(self.store, resource, obj)

    def _fill_namespace(self, name: str) -> None:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        active = {"phase": "Active"}
        self.store.mutate(NAMESPACES, "", name, lambda obj: obj.update(status=active))
        self.create(ACCOUNTS, name, account)

    def replace(self, resource: Resource, where: tuple[str, str], given: Any, sub: str = "") -> Obj:
        """Store a new state of the object; with `sub` its status alone, else all but that."""
        namespace, name = where
        new = _placed(resource, namespace, given)
        if new["metadata"].get("name") != name:
            said = f"the name of the object ({new['metadata'].get('name')}) does not match"
            raise bad_request(f"{said} the name on the URL ({name})")
        return self._edit(resource, where, lambda _: new, sub)

    def patch(self, resource: Resource, where: tuple[str, str], given: Any, sub: str = "") -> Obj:
        """Merge into the object; null removes a field."""
        return self._edit(resource, where, lambda old: merge(copy.deepcopy(old), given), sub)

    def _edit(
        self, resource: Resource, where: tuple[str, str], make: Callable[[Obj], Obj], sub: str
    ) -> Obj:
        namespace, name = where
        with self.store.changed:
            old = self.store.get(resource, namespace, name)
            new = make(old)
            check(resource, new)
            version = new["metadata"].get("resourceVersion") or old["metadata"]["resourceVersion"]
            if version != old["metadata"]["resourceVersion"]:
                raise conflict(resource, name)
            kept = stored_state(old, new, sub)
            check_fixed(resource, old, kept)
            self.store.mutate(resource, namespace, name, lambda obj: assign(obj, kept))
            return self.store.find(resource, namespace, name) or kept

    def delete(self, resource: Resource, where: tuple[str, str], options: Obj) -> Obj:
        """Delete an object; what it answers is the object if that is there for a while."""
        namespace, name = where
        with self.store.changed:
            old = self.store.get(resource, namespace, name)
            _check_preconditions(resource, old, part(options, "preconditions"))
            grace = _grace(old, options) if resource == PODS else 0
            finalizer = _FINALIZERS.get(_policy(resource, options), "")
            finalizer = "kubernetes" if resource == NAMESPACES else finalizer
            if finalizer and "deletionTimestamp" not in old["metadata"]:
                self.store.mutate(resource, *where, lambda obj: _add_finalizer(obj, finalizer))
            last = self.store.delete(resource, namespace, name, grace) or old
            left = self.store.find(resource, namespace, name)
        if left is not None or resource == PODS:
            return left or last
        details = details_of(resource, name, uid=old["metadata"]["uid"])
        answer: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return {**answer, "details": details}

    def evict(self, namespace: str, name: str, given: Any) -> Obj:
        """Delete a pod as a drain does: its condition says so."""
        check(EVICTIONS, given)
        if given["metadata"].get("name") != name:
            raise bad_request(f"name in URL does not match name in Eviction object: {name}")

        def mark(pod: Obj) -> None:
            said = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
            put_condition(pod, "DisruptionTarget", True, **said)

        if self.store.mutate(PODS, namespace, name, mark) is None:
            raise not_found(PODS, name)
        self.delete(PODS, (namespace, name), part(given, "deleteOptions"))
        answer: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}}
        return {**answer, "status": "Success", "code": 201}


def _placed(resource: Resource, namespace: str, given: Any) -> Obj:
    """Return a copy of what was sent that names its namespace."""
    if not isinstance(given, dict):
        raise bad_request("the body of the request was not an object")
    obj = copy.deepcopy(as_object(given))
    meta = obj.setdefault("metadata", {})
    if resource.namespaced and meta.setdefault("namespace", namespace) != namespace:
        said = "the namespace of the provided object does not match the namespace sent on the"
        raise bad_request(f"{said} request")
    return obj


def _check_preconditions(resource: Resource, obj: Obj, wanted: Obj) -> None:
    meta = obj["metadata"]
    for key, word in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(key, meta[key]) != meta[key]:
            said = f"the {word} in the precondition ({wanted[key]}) does not match the {word} in"
            said += f" record ({meta[key]}). The object might have been"
            raise conflict(resource, meta["name"], f"{said} deleted and then recreated")


def _grace(pod: Obj, options: Obj) -> int:
    """Return how many seconds the pod has to end; none if it has ended or never began."""
    if pod["status"].get("phase") in ("Succeeded", "Failed") or not pod["spec"].get("nodeName"):
        return 0
    given = options.get("gracePeriodSeconds")
    return pod["spec"]["terminationGracePeriodSeconds"] if given is None else int(given)


def _policy(resource: Resource, options: Obj) -> str:
    """A Job's pods stay when nothing is said: a real server does that for old clients."""
    given = options.get("propagationPolicy") or ("Orphan" if resource == JOBS else "Background")
    if given not in _POLICIES:
        known = ", ".join(f'"{each}"' for each in _POLICIES)
        said = f'Unsupported value: "{given}": supported values: {known}, "nil"'
        raise invalid(_OPTIONS, "", [Cause("propagationPolicy", said)])
    return given


def _add_finalizer(obj: Obj, name: str) -> None:
    finalizers: list[str] = obj["metadata"].setdefault("finalizers", [])
    finalizers.append(name)


def is_finished(job: Obj) -> bool:
    return has_condition(job, "Failed") or has_condition(job, "Complete")
