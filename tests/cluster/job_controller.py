"""The controller of Jobs as prefect-bt makes them: Indexed, and failed by their first failed pod.

Of a Job's status it keeps only the conditions FailureTarget, Failed and Complete.
"""

from __future__ import annotations

import copy
import time
import uuid

from .api_errors import ApiError
from .resources import EVENTS, JOBS, PODS, Obj, part, parts, place
from .store import has_condition, is_deleted, is_over, set_condition, timestamp
from .verbs import Verbs, owners_of

AGAIN_SECONDS = 1.0
"""Seconds from the failed creation of a pod to the next try."""
INDEX = "batch.kubernetes.io/job-completion-index"
TRACKING = "batch.kubernetes.io/job-tracking"


class JobController:
    def __init__(self, verbs: Verbs) -> None:
        self._verbs, self._store = verbs, verbs.store
        self._not_before: dict[str, float] = {}
        """Uid of a Job -> when the creation of its pods is tried again."""

    def turn(self) -> None:
        """Reconcile every Job, and remove the finalizers of pods whose Job is gone."""
        jobs = self._store.all(JOBS)
        pods = self._store.all(PODS)
        for job in jobs:
            self._reconcile(job, [pod for pod in pods if _owner(pod) == job["metadata"]["uid"]])
        uids = {job["metadata"]["uid"] for job in jobs}
        for pod in pods:
            if _owner(pod) not in uids:
                self._release(pod)

    def _reconcile(self, job: Obj, pods: list[Obj]) -> None:
        """Fail the Job, or create its missing pods; release the pods that have ended."""
        if job["spec"]["suspend"]:
            return
        if not (has_condition(job, "Failed") or has_condition(job, "Complete")):
            is_failing = any(pod["status"]["phase"] == "Failed" for pod in pods)
            if is_failing or has_condition(job, "FailureTarget"):
                self._fail(job, pods)
            else:
                self._fill_up(job, pods)
        for pod in filter(is_over, pods):
            self._release(pod)

    def _fail(self, job: Obj, pods: list[Obj]) -> None:
        """Delete the active pods; the Job is Failed once all of them have ended."""
        for pod in pods:
            if not is_over(pod) and not is_deleted(pod):
                self._release(pod)
                self._verbs.delete(PODS, *place(pod), {})
        self._set_condition(job, "FailureTarget")
        if all(map(is_over, pods)):
            self._set_condition(job, "Failed")

    def _fill_up(self, job: Obj, pods: list[Obj]) -> None:
        """Create the pods of indexes without one; the Job is Complete when all have succeeded."""
        wanted = job["spec"]["completions"]
        done = {_index(pod) for pod in pods if pod["status"]["phase"] == "Succeeded"}
        kept = {_index(pod) for pod in pods}
        self._create(job, [index for index in range(wanted) if index not in kept])
        if len(done) == wanted:
            self._set_condition(job, "Complete")

    def _create(self, job: Obj, indexes: list[int]) -> None:
        uid, namespace = job["metadata"]["uid"], job["metadata"]["namespace"]
        if time.monotonic() < self._not_before.get(uid, 0):
            return
        for index in indexes:
            try:
                self._verbs.create(PODS, namespace, make_pod(job, index))
            except ApiError as error:
                self._record_failed_creation(job, f"Error creating: {error.message}")
                self._not_before[uid] = time.monotonic() + AGAIN_SECONDS
                break

    def _record_failed_creation(self, job: Obj, message: str) -> None:
        namespace, name = place(job)
        event: Obj = {"apiVersion": "v1", "kind": "Event", "type": "Warning", "message": message}
        event["metadata"] = {"name": f"{name}.{uuid.uuid4().hex[:16]}", "namespace": namespace}
        event["involvedObject"] = {"kind": "Job", "namespace": namespace, "name": name}
        event |= {"reason": "FailedCreate", "lastTimestamp": timestamp()}
        self._store.create(EVENTS, event)

    def _set_condition(self, job: Obj, type: str) -> None:
        self._store.mutate(JOBS, *place(job), lambda obj: set_condition(obj, type, True))

    def _release(self, pod: Obj) -> None:
        if pod["metadata"].get("finalizers"):
            bare: Obj = {"finalizers": []}
            self._store.mutate(PODS, *place(pod), lambda obj: obj["metadata"].update(bare))


def make_pod(job: Obj, index: int) -> Obj:
    """Return the manifest of the pod with this index."""
    meta, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
    given, spec = part(template, "metadata"), template["spec"]
    spec.setdefault("hostname", f"{meta['name']}-{index}")
    field = {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}
    entry = {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": field}}
    for container in [*parts(spec, "initContainers"), *spec["containers"]]:
        container["env"] = [*parts(container, "env"), entry]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}
    own = {"job-name": meta["name"], "batch.kubernetes.io/job-name": meta["name"]}
    pod_meta: Obj = {"generateName": f"{meta['name']}-{index}-", "finalizers": [TRACKING]}
    pod_meta["labels"] = {**part(given, "labels"), **own, INDEX: str(index)}
    pod_meta["annotations"] = {**part(given, "annotations"), INDEX: str(index)}
    pod_meta["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": True}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": pod_meta, "spec": spec}


def _index(pod: Obj) -> int:
    return int(pod["metadata"]["annotations"][INDEX])


def _owner(pod: Obj) -> str:
    return next((each["uid"] for each in owners_of(pod) if each.get("controller")), "")
