"""The objects of the cluster, their versions, the history for watches, and selectors."""

from __future__ import annotations

import copy
import secrets
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .api_errors import already_exists, bad_request, not_found
from .resources import Obj, Resource, part, parts, place

FIELDS = ("metadata.name", "involvedObject.name", "involvedObject.kind", "status.phase")


def timestamp(seconds: float | None = None) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def random_letters(count: int = 5) -> str:
    return secrets.token_hex(count)[:count]


@dataclass(frozen=True)
class Change:
    version: int
    type: str
    resource: Resource
    object: Obj


class Store:
    """Holds every object. Objects that it returns are shared: only `mutate` may change them."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.version = 0
        self._objects: dict[tuple[Resource, str, str], Obj] = {}
        self._history: list[Change] = []

    def find(self, resource: Resource, namespace: str, name: str) -> Obj | None:
        with self.changed:
            return self._objects.get((resource, namespace, name))

    def get(self, resource: Resource, namespace: str, name: str) -> Obj:
        found = self.find(resource, namespace, name)
        if found is None:
            raise not_found(resource, name)
        return found

    def all(self, resource: Resource, namespace: str = "") -> list[Obj]:
        """Return the objects of the namespace, or of all of them, in order of their names."""
        found = [obj for kind, obj in self.everything() if kind == resource]
        return sorted((obj for obj in found if namespace in ("", place(obj)[0])), key=place)

    def everything(self) -> list[tuple[Resource, Obj]]:
        with self.changed:
            return [(key[0], obj) for key, obj in self._objects.items()]

    def create(self, resource: Resource, obj: Obj) -> Obj:
        """Store a copy with a uid and a time."""
        obj = copy.deepcopy(obj)
        meta = obj["metadata"]
        with self.changed:
            key = (resource, *place(obj))
            if key in self._objects:
                raise already_exists(resource, meta["name"])
            meta["uid"] = str(uuid.uuid4())
            meta["creationTimestamp"] = timestamp()
            self._record("ADDED", key, obj)
            return obj

    def mutate(
        self, resource: Resource, namespace: str, name: str, change: Callable[[Obj], None]
    ) -> Obj | None:
        """Let `change` edit a copy of the object and store it; None when there is no object.

        An object with a deletionTimestamp is removed once its grace is 0 and it has no finalizers.
        """
        key = (resource, namespace, name)
        with self.changed:
            old = self._objects.get(key)
            if old is None:
                return None
            new = copy.deepcopy(old)
            change(new)
            if new == old:
                return old
            self._record("DELETED" if _is_over(new) else "MODIFIED", key, new)
            return new

    def delete(self, resource: Resource, namespace: str, name: str, grace: int = 0) -> Obj | None:
        """Set its deletionTimestamp; an object without grace and finalizers is removed."""

        def mark(obj: Obj) -> None:
            meta = obj["metadata"]
            if grace < meta.get("deletionGracePeriodSeconds", grace + 1):
                meta["deletionTimestamp"] = timestamp(time.time() + grace)
                meta["deletionGracePeriodSeconds"] = grace

        return self.mutate(resource, namespace, name, mark)

    def changes(self, resource: Resource, after: int) -> list[Change]:
        with self.changed:
            newer = self._history[after - self.version :] if after < self.version else []
            return [change for change in newer if change.resource == resource]

    def wait(self, version: int, seconds: float) -> None:
        """Return when the store is newer than `version`, after `seconds` at the latest."""
        with self.changed:
            self.changed.wait_for(lambda: self.version > version, seconds)

    def _record(self, type: str, key: tuple[Resource, str, str], obj: Obj) -> None:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        if type == "DELETED":
            del self._objects[key]
        else:
            self._objects[key] = obj
        self._history.append(Change(self.version, type, key[0], obj))
        self.changed.notify_all()


def _is_over(obj: Obj) -> bool:
    meta = obj["metadata"]
    return meta.get("deletionGracePeriodSeconds", 1) == 0 and not meta.get("finalizers")


def set_condition(obj: Obj, type: str, status: bool | str, **more: Any) -> None:
    """Set a condition of the object."""
    conditions: list[Obj] = obj.setdefault("status", {}).setdefault("conditions", [])
    new: Obj = {"type": type, "status": str(status), **more}
    for number, old in enumerate(conditions):
        if old["type"] == type:
            conditions[number] = new
            return
    conditions.append(new)


def condition(obj: Obj, type: str) -> Obj:
    """Return the condition, empty when there is none."""
    conditions = parts(part(obj, "status"), "conditions")
    return next((each for each in conditions if each["type"] == type), Obj())


def has_condition(obj: Obj, type: str) -> bool:
    return condition(obj, type).get("status") == "True"


def is_deleted(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def is_over(pod: Obj) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def matches(obj: Obj, query: dict[str, str]) -> bool:
    """Return whether the object fits the label selector and the field selector of a query."""
    labels = part(obj["metadata"], "labels")
    for key, value, equal in _terms(query.get("labelSelector", "")):
        if (labels.get(key) == value) != equal:
            return False
    for key, value, equal in _terms(query.get("fieldSelector", "")):
        if key not in FIELDS:
            raise bad_request(f"field label not supported: {key}")
        outer, inner = key.split(".")
        if (part(obj, outer).get(inner) == value) != equal:
            return False
    return True


def _terms(selector: str) -> list[tuple[str, str, bool]]:
    """Read a selector such as `a=b,c==d,e!=f`; other operators are refused."""
    terms = [each.replace("==", "=").partition("=") for each in filter(None, selector.split(","))]
    if not all(equals for _, equals, _ in terms):
        raise bad_request(f"the small cluster cannot read the selector {selector!r}")
    return [
        (key.removesuffix("!").strip(), value.strip(), not key.endswith("!"))
        for key, _, value in terms
    ]
