"""The controller of Jobs with indexes: their pods, their failure policies, their conditions.

Slower than this is the real one alone: it looks again after a second, and after ten when a pod has
failed.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Callable

from .controllers import remove_finalizer
from .events import record_event
from .job_pods import (
    TRACKING,
    index_of,
    is_active,
    is_deleted,
    is_failed,
    is_over,
    judge,
    make_pod,
    read_indexes,
    write_indexes,
)
from .objects import condition, has_condition, set_condition, timestamp
from .resources import JOBS, PODS, ApiError, Obj, parts
from .verbs import Verbs, is_finished

AGAIN_SECONDS = 1.0
_REACHED = {"reason": "CompletionsReached", "message": "Reached expected number of succeeded pods"}
_EXCEEDED = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
_LATE = ("DeadlineExceeded", "Job was active longer than specified deadline")


class JobController:
    def __init__(self, verbs: Verbs) -> None:
        self._verbs, self._store = verbs, verbs.store
        self._not_before: dict[str, float] = {}
        """Of Jobs one of whose pods could not be created, or has to be replaced."""

        self._failed: set[str] = set()

    def turn(self) -> None:
        """Look at every Job once."""
        jobs = self._store.all(JOBS)
        pods = self._store.all(PODS)
        for job in jobs:
            uid = job["metadata"]["uid"]
            own = [pod for pod in pods if _owner(pod) == uid]
            if "deletionTimestamp" not in job["metadata"]:
                self._reconcile(job, own)
        left = {
            job["metadata"]["uid"] for job in jobs if "deletionTimestamp" not in job["metadata"]
        }
        for pod in pods:
            if _owner(pod) not in left:
                self._let_go(pod)

    def _reconcile(self, job: Obj, pods: list[Obj]) -> None:
        if is_finished(job):
            for pod in pods:
                self._let_go(pod)
            self._expire(job)
        elif job["spec"]["suspend"]:
            self._suspend(job, pods)
        else:
            self._resume(job)
            self._count(job, pods)

    def _expire(self, job: Obj) -> None:
        """Delete a finished Job whose time to live is over."""
        seconds = job["spec"].get("ttlSecondsAfterFinished")
        ended = condition(job, "Failed") or condition(job, "Complete")
        if seconds is not None and _age(ended["lastTransitionTime"]) >= seconds:
            self._verbs.delete(JOBS, _where(job), {"propagationPolicy": "Background"})

    def _suspend(self, job: Obj, pods: list[Obj]) -> None:
        for pod in filter(is_active, pods):
            self._delete(job, pod)
        if not has_condition(job, "Suspended"):
            record_event(self._store, "Job", job, "Suspended", "Job suspended")

        def change(each: Obj) -> None:
            set_condition(each, "Suspended", True, reason="JobSuspended", message="Job suspended")
            each["status"].pop("startTime", None)
            _set_counts(each, pods, active=0)

        self._write(job, change)

    def _resume(self, job: Obj) -> None:
        def change(each: Obj) -> None:
            if has_condition(each, "Suspended"):
                more = {"reason": "JobResumed", "message": "Job resumed"}
                set_condition(each, "Suspended", False, **more)
            each["status"].setdefault("startTime", timestamp())

        if has_condition(job, "Suspended"):
            record_event(self._store, "Job", job, "Resumed", "Job resumed")
        self._write(job, change)

    def _count(self, job: Obj, pods: list[Obj]) -> None:
        """Count the pods that have ended, and end the Job or make the pods that are missing."""
        verdict, failed = self._verdict(job), job["status"].get("failed", 0)
        alive = {index_of(pod) for pod in pods if not is_failed(job, pod)}
        for pod in pods:
            if is_failed(job, pod) and TRACKING in parts(pod["metadata"], "finalizers"):
                action, said = judge(job, pod)
                failed += action != "Ignore"
                if action == "FailJob":
                    verdict = verdict or ("PodFailurePolicy", said)
                self._wait_after(job, pod)
                if action == "Ignore" and index_of(pod) not in alive and not verdict:
                    continue  # it is let go once another pod is in its place
            if is_failed(job, pod) or is_over(pod):
                self._let_go(pod)
        if failed > job["spec"]["backoffLimit"]:
            verdict = verdict or _EXCEEDED
        if verdict:
            self._fail(job, pods, verdict, failed)
        else:
            self._go_on(job, pods, failed)

    def _verdict(self, job: Obj) -> tuple[str, str] | None:
        """Return why the Job fails, if that has been found before, or its time is over."""
        if target := condition(job, "FailureTarget"):
            return target["reason"], target["message"]
        limit, started = job["spec"].get("activeDeadlineSeconds"), job["status"].get("startTime")
        return _LATE if limit and started and _age(started) >= limit else None

    def _fail(self, job: Obj, pods: list[Obj], verdict: tuple[str, str], failed: int) -> None:
        """Delete what is active; the Job has failed once nothing of it is left running."""
        active = list(filter(is_active, pods))
        for pod in active:
            self._delete(job, pod)
        failed += len(active)
        reason, message = verdict
        ended = not active and not any(is_deleted(pod) and not is_over(pod) for pod in pods)

        def change(each: Obj) -> None:
            set_condition(each, "FailureTarget", True, reason=reason, message=message)
            each["status"]["failed"] = failed
            _set_counts(each, pods, active=0, terminating=len(active))
            if ended:
                set_condition(each, "Failed", True, reason=reason, message=message)

        if ended:
            record_event(self._store, "Job", job, reason, message, type="Warning")
        self._write(job, change)

    def _go_on(self, job: Obj, pods: list[Obj], failed: int) -> None:
        done = read_indexes(job["status"].get("completedIndexes", ""))
        done |= {index_of(pod) for pod in pods if pod["status"]["phase"] == "Succeeded"}
        wanted = job["spec"]["completions"]
        kept = done | {index_of(pod) for pod in pods if not is_failed(job, pod)}
        active = len(list(filter(is_active, pods)))
        room = job["spec"]["parallelism"] - active
        missing = [index for index in range(wanted) if index not in kept][: max(0, room)]
        made = self._create(job, missing)

        def change(each: Obj) -> None:
            status = each["status"]
            status |= {"failed": failed} if failed else {}
            if done:
                status["succeeded"] = len(done)
                status["completedIndexes"] = write_indexes(done)
            _set_counts(each, pods, active=active + made)
            if len(done) == wanted:
                set_condition(each, "SuccessCriteriaMet", True, **_REACHED)
                set_condition(each, "Complete", True, **_REACHED)
                status["completionTime"] = timestamp()

        self._write(job, change)

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
                self._wait(job)
                break
            said = f"Created pod: {pod['metadata']['name']}"
            record_event(self._store, "Job", job, "SuccessfulCreate", said)
            made += 1
        return made

    def _wait(self, job: Obj) -> None:
        self._not_before[job["metadata"]["uid"]] = time.monotonic() + AGAIN_SECONDS

    def _wait_after(self, job: Obj, pod: Obj) -> None:
        """Wait once for each pod that has failed."""
        uid = pod["metadata"]["uid"]
        if uid not in self._failed:
            self._failed.add(uid)
            self._wait(job)

    def _delete(self, job: Obj, pod: Obj) -> None:
        self._let_go(pod)
        self._verbs.delete(PODS, _where(pod), {})
        said = f"Deleted pod: {pod['metadata']['name']}"
        record_event(self._store, "Job", job, "SuccessfulDelete", said)

    def _let_go(self, pod: Obj) -> None:
        if TRACKING in parts(pod["metadata"], "finalizers"):
            remove_finalizer(self._store, PODS, pod, TRACKING)

    def _write(self, job: Obj, change: Callable[[Obj], None]) -> None:
        self._store.mutate(JOBS, *_where(job), change)


def _set_counts(job: Obj, pods: list[Obj], *, active: int, terminating: int = 0) -> None:
    status = job["status"]
    status.pop("active", None)
    if active:
        status["active"] = active
    ended = sum(is_deleted(pod) and not is_over(pod) for pod in pods)
    ready = sum(is_active(pod) and has_condition(pod, "Ready") for pod in pods)
    status["ready"] = ready if active else 0
    status["terminating"] = ended + terminating
    status["uncountedTerminatedPods"] = {}


def _owner(pod: Obj) -> str:
    owners = parts(pod["metadata"], "ownerReferences")
    return next((each["uid"] for each in owners if each.get("controller")), "")


def _where(obj: Obj) -> tuple[str, str]:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def _age(time_of: str) -> float:
    return time.time() - calendar.timegm(time.strptime(time_of, "%Y-%m-%dT%H:%M:%SZ"))
