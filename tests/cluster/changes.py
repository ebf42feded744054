"""Changes of objects by users: merge patches, and the fields that stay as they are."""

from __future__ import annotations

import copy
from typing import Any

from .resources import JOBS, PODS, Cause, Obj, Resource, as_object, invalid

_FIXED_OF_JOBS = ("template", "completionMode", "selector", "podFailurePolicy", "completions")
_FREE_OF_PODS = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds")


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


def stored_state(old: Obj, new: Obj, sub: str) -> Obj:
    """Return what is stored: `new` with the parts that a user does not set, from `old`."""
    if sub == "status":
        return {**old, "status": new.get("status", {})}
    kept = {**new, "metadata": {**new["metadata"]}}
    if "status" in old:
        kept["status"] = old["status"]
    names = ("uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp")
    for key in (*names, "deletionGracePeriodSeconds"):
        kept["metadata"].pop(key, None)
        if key in old["metadata"]:
            kept["metadata"][key] = old["metadata"][key]
    return kept


def assign(obj: Obj, new: Obj) -> None:
    obj.clear()
    obj.update(copy.deepcopy(new))


def check_fixed(resource: Resource, old: Obj, new: Obj) -> None:
    name = old["metadata"]["name"]
    if resource == JOBS:
        for key in _FIXED_OF_JOBS:
            if old["spec"].get(key) != new["spec"].get(key):
                shown = f"Invalid value: {new['spec'].get(key)!r}: field is immutable"
                raise invalid(resource, name, [Cause(f"spec.{key}", shown)])
    if resource == PODS:
        before: Obj = {**old["spec"]}
        after: Obj = {**new["spec"]}
        for key in _FREE_OF_PODS:
            before.pop(key, None)
            after.pop(key, None)
        if before != after:
            said = "Forbidden: pod updates may not change fields other than"
            raise invalid(resource, name, [Cause("spec", f"{said} {', '.join(_FREE_OF_PODS)}")])
