"""Objects of JSON, and the merge of a user's patch into a manifest."""

from __future__ import annotations

from typing import Any, cast

Json = dict[str, Any]


def merge(target: Any, patch: Any) -> Any:
    """Return `target` with `patch` applied: objects by key (null deletes), other values replaced.

    Lists whose members are objects with names are merged by name.

    >>> merge({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"d": 3}})
    {'b': {'c': 2, 'd': 3}}
    >>> merge([{"name": "x", "v": 1}], [{"name": "x", "w": 2}, {"name": "y"}])
    [{'name': 'x', 'v': 1, 'w': 2}, {'name': 'y'}]
    """
    if isinstance(patch, dict) and isinstance(target, dict):
        # Keys of JSON objects are strings.
        return _merge_objects(cast("Json", target), cast("Json", patch))
    if _is_named_list(patch) and _is_named_list(target):
        return _merge_lists(cast("list[Json]", target), cast("list[Json]", patch))
    return cast("Any", patch)


def _merge_objects(target: Json, patch: Json) -> Json:
    merged = target | {key: merge(target.get(key), value) for key, value in patch.items()}
    return {key: value for key, value in merged.items() if value is not None}


def _merge_lists(target: list[Json], patch: list[Json]) -> list[Json]:
    changes = {_identity(one): one for one in patch}
    known: list[Json] = [merge(one, changes.pop(_identity(one), {})) for one in target]
    return [*known, *changes.values()]


def _identity(one: Json) -> Any:
    """Return the name, or the path of a mount, because one volume can have several mounts."""
    return one.get("mountPath", one["name"])


def _is_named_list(value: Any) -> bool:
    members = cast("list[Any]", value) if isinstance(value, list) else [None]
    return bool(members) and all(isinstance(one, dict) and "name" in one for one in members)
