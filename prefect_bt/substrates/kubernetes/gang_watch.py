"""View of the pods of one attempt, kept up to date by one watch.

A thread lists the pods and watches them from that version. When the watch ends for any reason (a
version that is too old, a server that is busy, restarts or sends nothing), the thread lists and
watches the pods again. While no server answers, the view does not change.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from http import HTTPStatus
from typing import Final, NamedTuple

from prefect_bt.errors import SubstrateError
from prefect_bt.substrates.kubernetes.client import ClusterError
from prefect_bt.substrates.kubernetes.job_objects import JobObjects
from prefect_bt.substrates.kubernetes.json_merge import Json
from prefect_bt.substrates.kubernetes.pods.pod_states import PodView, Problem, read_pod
from prefect_bt.substrates.kubernetes.pods.warning_events import (
    read_failed_creation,
    read_pod_warnings,
)

WATCH_SECONDS: Final = 240
"""Seconds for which the server keeps a watch open."""
SILENCE_SECONDS: Final = 90.0
"""Seconds without data after which a connection is dead; a server sends a bookmark each minute."""
RESTART_DELAYS: Final = (0.2, 1.0, 2.0, 5.0, 10.0)
"""Delays in seconds before the watch restarts; the last one repeats."""
REASON_INTERVAL: Final = 5.0
"""Seconds between two requests for the reason why there are no pods, or why they do not start."""


class MissingPods(NamedTuple):
    """Facts about a Job without pods. `is_suspended`: it was not started, or is queued."""

    problem: Problem | None = None
    is_job_gone: bool = False
    is_suspended: bool = False


class GangWatch:
    """Latest view of the pods of one Job. Safe to use from several threads.

    `close` ends the thread of the watch.
    """

    def __init__(self, objects: JobObjects) -> None:
        self._objects = objects
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._pods: dict[int, PodView] = {}
        """Rank -> last view of its pod. The dictionary is replaced, never changed."""
        self.is_listed = False
        """True after the first list of the pods."""
        self._reason_read_at = -REASON_INTERVAL
        self._missing = MissingPods()
        self._warnings_read_at = -REASON_INTERVAL
        self._warnings: dict[str, tuple[Problem, ...]] = {}
        """Name of a pod -> what its machine warns of."""

    def start(self) -> None:
        """Watch the pods in the background, also after an unforeseen error. Idempotent."""
        with self._lock:
            if self._thread is None or not (self._thread.is_alive() or self._closed.is_set()):
                name = f"watch-{self._objects.name}"
                self._thread = threading.Thread(target=self._run, daemon=True, name=name)
                self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def find(self, rank: int) -> PodView | None:
        """Return the last view of the rank's pod; None if it never had one."""
        return self._pods.get(rank)

    def find_missing_reason(self) -> MissingPods:
        """Return why a rank has no pod, at most REASON_INTERVAL old."""
        with self._lock:
            if time.monotonic() - self._reason_read_at >= REASON_INTERVAL:
                self._reason_read_at = time.monotonic()
                with suppress(SubstrateError):
                    self._missing = self._read_missing_reason()
            return self._missing

    def _read_missing_reason(self) -> MissingPods:
        job: Json | None = self._objects.find_job()
        suspended = job is not None and bool(job.get("spec", {}).get("suspend"))
        problem = read_failed_creation(self._objects.list_events())
        return MissingPods(problem, job is None, suspended)

    def find_warnings(self, pod: PodView) -> tuple[Problem, ...]:
        """Return what the machine of a pod warns of, at most REASON_INTERVAL old; newest last.

        One request reads the warnings about all pods.
        """
        with self._lock:
            if time.monotonic() - self._warnings_read_at >= REASON_INTERVAL:
                self._warnings_read_at = time.monotonic()
                with suppress(SubstrateError):
                    self._warnings = read_pod_warnings(self._objects.list_pod_warnings())
            return self._warnings.get(pod.name, ())

    def list_pods(self) -> str:
        """List the pods. Return the resource version at which a watch begins. ClusterError."""
        found = self._objects.list_pods()
        gone = {rank: view._replace(exists=False) for rank, view in self._pods.items()}
        views = [read_pod(pod) for pod in found["items"]]
        self._pods = gone | {view.rank: view for view in views}
        self.is_listed = True
        return str(found["metadata"]["resourceVersion"])

    def _run(self) -> None:
        version, failures = "", 0
        while not self._closed.is_set():
            try:
                version = self._watch(version or self.list_pods())
                failures = 0
                self._closed.wait(RESTART_DELAYS[0])
            # A proxy may send any answer, and the watch must continue.
            except (ClusterError, ValueError, KeyError, TypeError, AttributeError) as error:
                version = ""
                pause = RESTART_DELAYS[min(failures, len(RESTART_DELAYS) - 1)]
                expired = isinstance(error, ClusterError) and error.status == HTTPStatus.GONE
                failures = 0 if expired else failures + 1
                self._closed.wait(pause)

    def _watch(self, version: str) -> str:
        """Apply events until the server ends the watch. Return the version to continue from."""
        with self._objects.watch_pods(
            version, seconds=WATCH_SECONDS, silence=SILENCE_SECONDS
        ) as events:
            for event in events:
                if self._closed.is_set():
                    break
                version = str(event["object"]["metadata"]["resourceVersion"])
                self._apply(event)
        return version

    def _apply(self, event: Json) -> None:
        if event["type"] == "BOOKMARK":
            return
        view = read_pod(event["object"])
        known, deleted = self.find(view.rank), event["type"] == "DELETED"
        if not (deleted and known is not None and known.name != view.name):
            self._pods = {**self._pods, view.rank: view._replace(exists=not deleted)}
