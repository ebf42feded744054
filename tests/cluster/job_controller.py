"""The controller of Jobs as prefect-bt makes them: Indexed, with a backoffLimit of 0.

The only action of failure policies that it has is FailJob.
"""

from __future__ import annotations

import copy
import time

from .api_errors import ApiError
from .resources import JOBS, PODS, Obj, part, parts, place
from .store import (
    condition,
    has_condition,
    is_deleted,
    is_over,
    record_event,
    set_condition,
    timestamp,
)
from .verbs import Verbs, owners_of

AGAIN_SECONDS = 1.0
"""Seconds from the failed creation of a pod to the next try."""
INDEX = "batch.kubernetes.io/job-completion-index"
TRACKING = "batch.kubernetes.io/job-tracking"
_REACHED = {"reason": "CompletionsReached", "message": "Reached expected number of succeeded pods"}
_EXCEEDED = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")


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
        if has_condition(job, "Failed") or has_condition(job, "Complete"):
            for pod in pods:
                self._release(pod)
        elif job["spec"]["suspend"]:
            self._suspend(job, pods)
        else:
            self._resume(job)
            self._go_on(job, pods)

    def _suspend(self, job: Obj, pods: list[Obj]) -> None:
        for pod in filter(_is_active, pods):
            self._delete(job, pod)
        if not has_condition(job, "Suspended"):
            record_event(self._store, "Job", job, "Suspended", "Job suspended")

        def change(each: Obj) -> None:
            set_condition(each, "Suspended", True, reason="JobSuspended", message="Job suspended")
            each["status"].pop("startTime", None)
            _set_counts(each, pods, active=0)

        self._store.mutate(JOBS, *place(job), change)

    def _resume(self, job: Obj) -> None:
        def change(each: Obj) -> None:
            if has_condition(each, "Suspended"):
                more = {"reason": "JobResumed", "message": "Job resumed"}
                set_condition(each, "Suspended", False, **more)
            each["status"].setdefault("startTime", timestamp())

        if has_condition(job, "Suspended"):
            record_event(self._store, "Job", job, "Resumed", "Job resumed")
        self._store.mutate(JOBS, *place(job), change)

    def _go_on(self, job: Obj, pods: list[Obj]) -> None:
        """Count the pods that have ended; then fail the Job or create its missing pods."""
        target, failed = condition(job, "FailureTarget"), job["status"].get("failed", 0)
        verdict = (target["reason"], target["message"]) if target else None
        ended = list(filter(is_over, pods))
        for pod in ended:
            if pod["status"]["phase"] == "Failed" and TRACKING in _finalizers(pod):
                failed += 1
                verdict = verdict or _judge(job, pod)
        if verdict:
            self._fail(job, pods, verdict, failed)
        else:
            self._fill_up(job, pods)
        for pod in ended:
            self._release(pod)

    def _fail(self, job: Obj, pods: list[Obj], verdict: tuple[str, str], failed: int) -> None:
        """Delete the active pods; the Job is Failed once all of them have ended."""
        active = list(filter(_is_active, pods))
        for pod in active:
            self._delete(job, pod)
        reason, message = verdict
        ended = not active and not any(is_deleted(pod) and not is_over(pod) for pod in pods)

        def change(each: Obj) -> None:
            set_condition(each, "FailureTarget", True, reason=reason, message=message)
            each["status"]["failed"] = failed + len(active)
            _set_counts(each, pods, active=0, terminating=len(active))
            if ended:
                set_condition(each, "Failed", True, reason=reason, message=message)

        if ended:
            record_event(self._store, "Job", job, reason, message, type="Warning")
        self._store.mutate(JOBS, *place(job), change)

    def _fill_up(self, job: Obj, pods: list[Obj]) -> None:
        """Create the pods of indexes without one; the Job is Complete when all have succeeded."""
        wanted = job["spec"]["completions"]
        done = {int(word) for word in job["status"].get("completedIndexes", "").split(",") if word}
        done |= {_index(pod) for pod in pods if pod["status"]["phase"] == "Succeeded"}
        kept = done | {_index(pod) for pod in pods}
        made = self._create(job, [index for index in range(wanted) if index not in kept])
        active = made + len(list(filter(_is_active, pods)))

        def change(each: Obj) -> None:
            status = each["status"]
            if done:
                status["succeeded"] = len(done)
                status["completedIndexes"] = ",".join(map(str, sorted(done)))
            _set_counts(each, pods, active=active)
            if len(done) == wanted:
                set_condition(each, "SuccessCriteriaMet", True, **_REACHED)
                set_condition(each, "Complete", True, **_REACHED)
                status["completionTime"] = timestamp()

        self._store.mutate(JOBS, *place(job), change)

    def _create(self, job: Obj, indexes: list[int]) -> int:
        uid, made = job["metadata"]["uid"], 0
        if time.monotonic() < self._not_before.get(uid, 0):
            return 0
        for index in indexes:
            try:
                pod = self._verbs.create(PODS, job["metadata"]["namespace"], make_pod(job, index))
            except ApiError as error:
                said = f"Error creating: {error.message}"
                record_event(self._store, "Job", job, "FailedCreate", said, type="Warning")
                self._not_before[uid] = time.monotonic() + AGAIN_SECONDS
                break
            said = f"Created pod: {pod['metadata']['name']}"
            record_event(self._store, "Job", job, "SuccessfulCreate", said)
            made += 1
        return made

    def _delete(self, job: Obj, pod: Obj) -> None:
        self._release(pod)
        self._verbs.delete(PODS, *place(pod), {})
        said = f"Deleted pod: {pod['metadata']['name']}"
        record_event(self._store, "Job", job, "SuccessfulDelete", said)

    def _release(self, pod: Obj) -> None:
        if TRACKING in _finalizers(pod):
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
    pod_meta: Obj = {"generateName": f"{meta['name']}-{index}-", "finalizers": [TRACKING]}
    pod_meta["labels"] = {**part(given, "labels"), INDEX: str(index)}
    pod_meta["annotations"] = {**part(given, "annotations"), INDEX: str(index)}
    pod_meta["ownerReferences"] = [{**owner, "controller": True, "blockOwnerDeletion": True}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": pod_meta, "spec": spec}


def _index(pod: Obj) -> int:
    return int(pod["metadata"]["annotations"][INDEX])


def _judge(job: Obj, pod: Obj) -> tuple[str, str]:
    """Return the reason and the message of a Job's failure by this pod.

    They are those of the first rule that fits, else those of the backoffLimit.
    """
    for number, rule in enumerate(part(job["spec"], "podFailurePolicy").get("rules", [])):
        said = _exit_code(rule["onExitCodes"], pod) if rule.get("onExitCodes") else ""
        for pattern in parts(rule, "onPodConditions"):
            if has_condition(pod, pattern["type"]):
                said = f"Pod {'/'.join(place(pod))} has condition {pattern['type']}"
        if said and rule["action"] == "FailJob":
            return "PodFailurePolicy", f"{said} matching FailJob rule at index {number}"
    return _EXCEEDED


def _exit_code(codes: Obj, pod: Obj) -> str:
    status = pod["status"]
    for container in [*parts(status, "initContainerStatuses"), *parts(status, "containerStatuses")]:
        code, name = part(container["state"], "terminated").get("exitCode"), container["name"]
        fits = (code in codes["values"]) == (codes["operator"] == "In")
        if code and fits and codes.get("containerName", name) == name:
            return f"Container {name} for pod {'/'.join(place(pod))} failed with exit code {code}"
    return ""


def _set_counts(job: Obj, pods: list[Obj], *, active: int, terminating: int = 0) -> None:
    status = job["status"]
    status.pop("active", None)
    if active:
        status["active"] = active
    ending = sum(is_deleted(pod) and not is_over(pod) for pod in pods)
    ready = sum(_is_active(pod) and has_condition(pod, "Ready") for pod in pods)
    status["ready"] = ready if active else 0
    status["terminating"] = ending + terminating
    status["uncountedTerminatedPods"] = {}


def _is_active(pod: Obj) -> bool:
    return not is_over(pod) and not is_deleted(pod)


def _finalizers(pod: Obj) -> list[str]:
    return parts(pod["metadata"], "finalizers")


def _owner(pod: Obj) -> str:
    return next((each["uid"] for each in owners_of(pod) if each.get("controller")), "")
