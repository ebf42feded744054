"""Events about objects, as controllers write them."""

from __future__ import annotations

import uuid

from .objects import Store, timestamp
from .resources import EVENTS, Obj


def record_event(
    store: Store, kind: str, about: Obj, reason: str, message: str, *, type: str = "Normal"
) -> None:
    """Write an event, or count one more of the same that is there."""
    meta = about["metadata"]
    namespace = meta.get("namespace", "default")
    for event in store.all(EVENTS, namespace):
        same = (event["involvedObject"].get("uid"), event["reason"], event["message"])
        if same == (meta["uid"], reason, message):
            store.mutate(EVENTS, namespace, event["metadata"]["name"], _count)
            return
    involved = {"kind": kind, "apiVersion": "batch/v1" if kind == "Job" else "v1"}
    involved |= {key: meta[key] for key in ("name", "uid", "resourceVersion")}
    source, now = "job-controller" if kind == "Job" else "kubelet", timestamp()
    new: Obj = {"apiVersion": "v1", "kind": "Event", "type": type, "reason": reason}
    new["metadata"] = {"name": f"{meta['name']}.{uuid.uuid4().hex[:16]}", "namespace": namespace}
    new |= {"involvedObject": {**involved, "namespace": namespace}, "message": message}
    new |= {"count": 1, "firstTimestamp": now, "lastTimestamp": now, "eventTime": None}
    new |= {"reportingComponent": source, "reportingInstance": "", "source": {"component": source}}
    store.create(EVENTS, new)


def _count(event: Obj) -> None:
    event["count"] += 1
    event["lastTimestamp"] = timestamp()
