"""The pods of one attempt, kept up to date by one watch.

The first look lists the pods, and a thread watches them from there. Whatever ends the watch (a
version that is too old, a server that is busy, restarts or falls silent), the pods are listed again
and watched from there. While no server answers, the pods are what they were.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, cast

from prefect_bt.errors import SubstrateError
from prefect_bt.ledger.records import Cause
from prefect_bt.substrates.kubernetes.client import ClusterClient, ClusterError
from prefect_bt.substrates.kubernetes.pod_states import PodView, Problem, read_pod
from prefect_bt.substrates.kubernetes.refusals import classify_refusal

WATCH_SECONDS: Final = 240
"""How long the server keeps a watch open."""
SILENCE_SECONDS: Final = 90.0
"""A server sends a bookmark each minute: a connection that is silent for longer is dead."""
RESTART_DELAYS: Final = (0.2, 1.0, 2.0, 5.0, 10.0)
"""Seconds before the watch begins again, the last one over again while nothing answers."""
REASON_INTERVAL: Final = 5.0
"""Seconds between two looks at why there are no pods."""


class GangWatch:
    """The pods of one Job. Safe to use from several threads; `close` ends the thread."""

    def __init__(self, client: ClusterClient, namespace: str, job: str) -> None:
        self._client, self._name = client, job
        self._core = f"/api/v1/namespaces/{namespace}"
        self._job_path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{job}"
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._pods: dict[int, tuple[PodView, bool]] = {}
        """Rank -> its pod as it was last seen, and whether it is there. Replaced, never changed."""
        self._asked_at = -REASON_INTERVAL
        self._missing: Problem | None = None
        self._job: dict[str, Any] | None = {}

    def start(self) -> None:
        """List the pods and watch them from now on. Idempotent. ClusterError."""
        with self._lock:
            if self._thread is not None:
                return
            version = self._list()
            self._thread = threading.Thread(
                target=self._run, args=(version,), daemon=True, name=f"watch-{self._name}"
            )
            self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def find(self, rank: int) -> tuple[PodView | None, bool]:
        """Return the rank's pod as it was last seen, if it ever was, and whether it is there."""
        return self._pods.get(rank, (None, False))

    def find_missing_reason(self) -> tuple[Problem | None, bool, bool]:
        """Return why a rank has no pod, and whether its Job is gone or suspended.

        Asks now and then.
        """
        with self._lock:
            if time.monotonic() - self._asked_at >= REASON_INTERVAL:
                self._asked_at = time.monotonic()
                with suppress(SubstrateError):
                    self._job = self._client.find(self._job_path)
                    self._missing = self._read_failed_creation()
            job = self._job
            suspended = job is not None and bool(job.get("spec", {}).get("suspend"))
            return self._missing, job is None, suspended

    def find_pod_warning(self, pod: PodView) -> Problem | None:
        """Return the newest warning about a pod that does not start; None without one."""
        with suppress(SubstrateError):
            warnings = [one for one in self._list_events("Pod", pod.name) if _is_warning(one)]
            return Problem(Cause.LAUNCH_FAILED, _newest_message(warnings)) if warnings else None
        return None

    def _read_failed_creation(self) -> Problem | None:
        """Return what the Job's newest event says of pods that could not be created."""
        events = self._list_events("Job", self._name)
        failed = [one for one in events if one.get("reason") == "FailedCreate"]
        if not failed:
            return None
        message = _newest_message(failed).removeprefix("Error creating: ")
        return Problem(classify_refusal(message).cause, message)

    def _list_events(self, kind: str, name: str) -> list[dict[str, Any]]:
        selector = f"involvedObject.kind={kind},involvedObject.name={name}"
        query = {"fieldSelector": selector}
        found = self._client.request("GET", f"{self._core}/events", query=query)
        return cast("list[dict[str, Any]]", found["items"])

    def _list(self) -> str:
        """Replace what is known; return the version to watch from. ClusterError."""
        query = {"labelSelector": f"batch.kubernetes.io/job-name={self._name}"}
        found = self._client.request(
            "GET", f"{self._core}/pods", query=query, action=f"list the pods of Job {self._name}"
        )
        views = [read_pod(pod) for pod in found["items"]]
        gone = {rank: (view, False) for rank, (view, _) in self._pods.items()}
        self._pods = gone | {view.rank: (view, True) for view in views}
        return str(found["metadata"]["resourceVersion"])

    def _run(self, version: str) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                version = version or self._list()
                version = self._watch(version)
                failures = 0
                self._closed.wait(RESTART_DELAYS[0])
            except (ClusterError, ValueError, KeyError) as error:
                version = ""
                pause = RESTART_DELAYS[min(failures, len(RESTART_DELAYS) - 1)]
                expired = isinstance(error, ClusterError) and error.status == HTTPStatus.GONE
                failures = 0 if expired else failures + 1
                self._closed.wait(pause)

    def _watch(self, version: str) -> str:
        """Apply events until the server ends the watch; return the version to go on from."""
        query = {
            "labelSelector": f"batch.kubernetes.io/job-name={self._name}",
            "resourceVersion": version,
            "timeoutSeconds": WATCH_SECONDS,
        }
        with self._client.watch(f"{self._core}/pods", query, timeout=SILENCE_SECONDS) as events:
            for event in events:
                if self._closed.is_set():
                    break
                if event["type"] == "ERROR":
                    raise _watch_error(event["object"])
                version = str(event["object"]["metadata"]["resourceVersion"])
                self._apply(event)
        return version

    def _apply(self, event: dict[str, Any]) -> None:
        if event["type"] == "BOOKMARK":
            return
        view = read_pod(event["object"])
        known, _ = self.find(view.rank)
        deleted = event["type"] == "DELETED"
        if not (deleted and known is not None and known.name != view.name):
            self._pods = {**self._pods, view.rank: (view, not deleted)}


def _is_warning(event: dict[str, Any]) -> bool:
    return event.get("type") == "Warning"


def _newest_message(events: list[dict[str, Any]]) -> str:
    """Return it as one line without a full stop."""
    newest = max(
        events, key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or "")
    )
    return " ".join(str(newest.get("message", "")).split()).rstrip(".")


def _watch_error(status: dict[str, Any]) -> ClusterError:
    code = int(status.get("code", 0))
    message = str(status.get("message", "the watch ended"))
    return ClusterError(message, status=code, next_step="", cause=Cause.LAUNCH_FAILED)
