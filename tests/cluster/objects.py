"""The objects of the cluster with their versions, and the history that watches read."""

from __future__ import annotations

import copy
import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .resources import (
    Obj,
    Resource,
    already_exists,
    bad_request,
    expired,
    not_found,
    part,
    parts,
)

LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""What a real API server makes generated names of."""


def timestamp(seconds: float | None = None) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def random_letters(count: int = 5) -> str:
    return "".join(random.choices(LETTERS, k=count))


@dataclass(frozen=True)
class Change:
    version: int
    type: str
    resource: Resource
    object: Obj


class Store:
    """Holds every object. What it gives out is shared: change it through `mutate` alone."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.version = 100
        self.oldest = 100
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
        with self.changed:
            found = [
                (key, obj)
                for key, obj in self._objects.items()
                if key[0] == resource and namespace in ("", key[1])
            ]
        return [obj for _, obj in sorted(found, key=lambda pair: pair[0][1:])]

    def everything(self) -> list[tuple[Resource, Obj]]:
        with self.changed:
            return [(key[0], obj) for key, obj in self._objects.items()]

    def create(self, resource: Resource, obj: Obj) -> Obj:
        """Store a copy with a uid, a time and, where it has none, a name."""
        obj = copy.deepcopy(obj)
        meta = obj["metadata"]
        with self.changed:
            if "name" not in meta:
                meta["name"] = meta["generateName"] + random_letters()
            key = (resource, meta.get("namespace", ""), meta["name"])
            if key in self._objects:
                raise already_exists(resource, meta["name"])
            meta["uid"] = str(uuid.uuid4())
            meta["creationTimestamp"] = timestamp()
            if "spec" in obj:
                meta["generation"] = 1
            self._record("ADDED", key, obj)
            return obj

    def mutate(
        self, resource: Resource, namespace: str, name: str, change: Callable[[Obj], None]
    ) -> Obj | None:
        """Let `change` edit a copy of the object and store it; None when there is no object.

        What is to be deleted goes once it has neither grace nor finalizers left.
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
            if "spec" in new and new["spec"] != old.get("spec"):
                new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
            self._record("DELETED" if _is_over(new) else "MODIFIED", key, new)
            return new

    def delete(self, resource: Resource, namespace: str, name: str, grace: int = 0) -> Obj | None:
        """Mark the object as deleted; without grace and finalizers it goes now."""

        def mark(obj: Obj) -> None:
            meta = obj["metadata"]
            if grace < meta.get("deletionGracePeriodSeconds", grace + 1):
                meta["deletionTimestamp"] = timestamp(time.time() + grace)
                meta["deletionGracePeriodSeconds"] = grace

        return self.mutate(resource, namespace, name, mark)

    def compact(self) -> None:
        """Forget the history: who asks for it gets 410."""
        with self.changed:
            self.oldest = self.version
            self._history.clear()
            self.changed.notify_all()

    def changes(self, resource: Resource, after: int) -> list[Change]:
        with self.changed:
            if after < self.oldest:
                raise expired(after, self.oldest)
            newer = self._history[after - self.version :] if after < self.version else []
            return [change for change in newer if change.resource == resource]

    def wait(self, version: int, seconds: float) -> None:
        """Return when something is newer than `version`, or the time is over."""
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
    """Set the condition in the object's status; its time changes with its status alone."""
    conditions: list[Obj] = obj.setdefault("status", {}).setdefault("conditions", [])
    word = status if isinstance(status, str) else str(status)
    now = timestamp()
    new: Obj = {"type": type, "status": word, "lastProbeTime": None, "lastTransitionTime": now}
    new |= {key: value for key, value in more.items() if value}
    for number, old in enumerate(conditions):
        if old["type"] == type:
            if old["status"] == word:
                new["lastTransitionTime"] = old["lastTransitionTime"]
            conditions[number] = new
            return
    conditions.append(new)


def condition(obj: Obj, type: str) -> Obj:
    """Return the condition, empty when there is none."""
    conditions = parts(part(obj, "status"), "conditions")
    return next((each for each in conditions if each["type"] == type), Obj())


def has_condition(obj: Obj, type: str) -> bool:
    return condition(obj, type).get("status") == "True"


def matches_labels(obj: Obj, selector: str) -> bool:
    """Tell whether the labels fit a selector of `a=b`, `a==b`, `a!=b`, `a` and `!a`."""
    labels: Mapping[str, str] = part(obj["metadata"], "labels")
    return all(_fits(labels, part.strip()) for part in selector.split(",") if part.strip())


def _fits(labels: Mapping[str, str], part: str) -> bool:
    if "(" in part or ")" in part:
        raise bad_request(f"the cluster of the tests cannot read the label selector {part!r}")
    if "!=" in part:
        key, _, value = part.partition("!=")
        return labels.get(key.strip()) != value.strip()
    if "=" in part:
        key, _, value = part.replace("==", "=").partition("=")
        return labels.get(key.strip()) == value.strip()
    return part[1:].strip() not in labels if part.startswith("!") else part in labels


FIELDS = ("metadata.name", "metadata.namespace", "status.phase", "spec.nodeName", "reason", "type")


def matches_fields(obj: Obj, selector: str) -> bool:
    """Tell whether the fields fit a selector of `a.b=c` and `a.b!=c`."""
    for each in filter(None, selector.split(",")):
        key, _, value = each.replace("==", "=").partition("=")
        negated, key = key.endswith("!"), key.removesuffix("!")
        if key not in FIELDS and not key.startswith("involvedObject."):
            raise bad_request(f"field label not supported: {key}")
        found: Any = obj
        for name in key.split("."):
            found = found.get(name, "") if found else ""
        if (found == value) == negated:
            return False
    return True
