"""What a watch says: the changes after a version, bookmarks, and that it is too late for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .calls import Call
from .objects import Change, matches_fields, matches_labels
from .resources import ApiError, Obj

if TYPE_CHECKING:
    from .api_server import ApiServer

BOOKMARK_SECONDS = 2.0


def watch_events(api: ApiServer, call: Call, ended: threading.Event) -> Iterator[Obj]:
    """Yield events until the time that the caller gave is over, or the server ends."""
    store = api.store
    end = time.monotonic() + float(call.query.get("timeoutSeconds") or 1800)
    existing, version = _begin(api, call)
    yield from ({"type": "ADDED", "object": obj} for obj in existing)
    marked = time.monotonic()
    while not ended.is_set():
        if api.silent.is_set():
            ended.wait(0.05)
            continue
        try:
            changes, version = _newer(api, call, version)
        except ApiError as error:
            yield {"type": "ERROR", "object": error.status()}
            return
        yield from ({"type": change.type, "object": change.object} for change in changes)
        now = time.monotonic()
        if "allowWatchBookmarks" in call.query and now > marked + BOOKMARK_SECONDS:
            marked = now
            yield _bookmark(call, version)
        if now > end:
            return
        store.wait(version, min(0.5, max(0.01, end - time.monotonic())))


def _begin(api: ApiServer, call: Call) -> tuple[list[Obj], int]:
    """Return the version to begin after; without one given, also the objects there are."""
    given = int(call.query.get("resourceVersion") or 0)
    if given:
        return [], given
    with api.store.changed:
        existing = api.store.all(call.attempt.resource, call.attempt.namespace)
        return [obj for obj in existing if _wanted(call, obj)], api.store.version


def _newer(api: ApiServer, call: Call, version: int) -> tuple[list[Change], int]:
    with api.store.changed:
        changes = api.store.changes(call.attempt.resource, version)
        now = max(version, api.store.version)
    return [change for change in changes if _wanted(call, change.object)], now


def _wanted(call: Call, obj: Obj) -> bool:
    namespace = call.attempt.namespace
    return (
        namespace in ("", obj["metadata"].get("namespace", ""))
        and matches_labels(obj, call.query.get("labelSelector", ""))
        and matches_fields(obj, call.query.get("fieldSelector", ""))
        and call.attempt.name in ("", obj["metadata"]["name"])
    )


def _bookmark(call: Call, version: int) -> Obj:
    resource = call.attempt.resource
    body = {"kind": resource.kind, "apiVersion": resource.api_version}
    return {"type": "BOOKMARK", "object": {**body, "metadata": {"resourceVersion": str(version)}}}
