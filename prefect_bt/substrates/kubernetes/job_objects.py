"""Requests for the Job of an attempt and its pods, by name."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Any, Final, cast

from prefect_bt.errors import SubstrateError
from prefect_bt.ledger.records import Cause
from prefect_bt.substrates.kubernetes.client import SUBSTRATE_NAME, ClusterClient, ClusterError
from prefect_bt.substrates.kubernetes.json_merge import Json
from prefect_bt.substrates.kubernetes.names import JOB_NAME_LABEL

KILL_GRACE: Final = 1
"""Seconds from SIGTERM to SIGKILL for a pod without a final flush. With 0, Kubernetes removes the
pod object at once, while its containers can keep running for the grace in the pod's spec."""

REMOVAL_TIMEOUT: Final = 60.0
"""Longest wait for the pods of a removed gang to disappear, in seconds."""
FORCED_REMOVAL: Final = 20.0
"""Seconds after which a pod is deleted with grace 0, without confirmation from its kubelet."""


class JobObjects:
    """A Job of this name. Every method raises ClusterError, a SubstrateError."""

    def __init__(self, client: ClusterClient, namespace: str, name: str) -> None:
        self.name, self.client, self._namespace = name, client, namespace
        self._core = f"/api/v1/namespaces/{namespace}"
        self._jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self._path = f"{self._jobs}/{name}"
        self._selector = {"labelSelector": f"{JOB_NAME_LABEL}={name}"}

    def create(self, manifest: Json) -> Json:
        """Create the Job; return it as stored."""
        action = f"create Job {self.name}"
        return self.client.request("POST", self._jobs, body=manifest, action=action)

    def create_object(self, manifest: Json) -> None:
        """Create another object of the core API in the Job's namespace."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        path = f"{self._core}/{kind.lower()}s"
        self.client.request("POST", path, body=manifest, action=f"create the {kind} {name}")

    def start(self) -> None:
        """Let the suspended Job create its pods."""
        start = {"spec": {"suspend": False}}
        self.client.request("PATCH", self._path, body=start, action=f"start Job {self.name}")

    def find_job(self) -> Json | None:
        return self.client.find(self._path, action=f"read Job {self.name}")

    def list_pods(self) -> Json:
        """Return the list of pods: `items`, and `metadata` with the version to watch from."""
        action = f"list the pods of Job {self.name}"
        return self.client.request("GET", f"{self._core}/pods", query=self._selector, action=action)

    def watch_pods(
        self, version: str, *, seconds: int, silence: float
    ) -> AbstractContextManager[Generator[Json]]:
        """Watch the pods for `seconds`. `silence`: seconds without data that end the connection."""
        query = {**self._selector, "resourceVersion": version, "timeoutSeconds": seconds}
        return self.client.watch(f"{self._core}/pods", query, timeout=silence)

    def list_events(self) -> list[Json]:
        """Return the events of the Job."""
        selector = f"involvedObject.kind=Job,involvedObject.name={self.name}"
        return self._list_events(selector, f"list the events of Job {self.name}")

    def list_pod_warnings(self) -> list[Json]:
        """Return the warnings about the namespace's pods: a request for all pods of the Job."""
        selector = "type=Warning,involvedObject.kind=Pod"
        return self._list_events(selector, "list the events of pods")

    def _list_events(self, selector: str, action: str) -> list[Json]:
        query = {"fieldSelector": selector}
        found: Any = self.client.request("GET", f"{self._core}/events", query=query, action=action)
        return cast("list[Json]", found["items"])

    def delete_pod(self, name: str) -> None:
        """Delete a pod without a final flush. A missing pod is not an error."""
        query = {"gracePeriodSeconds": KILL_GRACE}
        self.client.delete(
            f"{self._core}/pods/{name}", query=query, action=f"delete the pod {name}"
        )

    def delete(self, *, grace: int = KILL_GRACE) -> None:
        """Delete the pods, then the Job with the objects that it owns. Idempotent.

        Pods are deleted first: a pod that garbage collection deletes keeps the full grace in its
        spec.
        """
        query = {**self._selector, "gracePeriodSeconds": grace}
        action = f"delete the pods of Job {self.name}"
        background = {"propagationPolicy": "Background"}
        try:
            self.client.delete(f"{self._core}/pods", query=query, action=action)
        finally:
            self.client.delete(self._path, query=background, action=f"delete Job {self.name}")

    def end(self) -> None:
        """Delete the Job and its pods, and wait until they are gone. SubstrateError.

        Retries within REMOVAL_TIMEOUT while the API server does not answer.
        """
        began, pause = time.monotonic(), 0.2
        trouble = f"has pods that were not deleted within {REMOVAL_TIMEOUT:.0f} s"
        sent, unmarked = -1, False
        while (passed := time.monotonic() - began) <= REMOVAL_TIMEOUT:
            try:
                # Grace 0 removes the object of a pod whose kubelet may still run it.
                grace = KILL_GRACE if passed < FORCED_REMOVAL else 0
                if unmarked or grace != sent:
                    self.delete(grace=grace)
                    sent = grace
                pods = self.list_pods()["items"]
                if not pods and self.find_job() is None:
                    return
                unmarked = not all("deletionTimestamp" in pod["metadata"] for pod in pods)
            except ClusterError as error:
                if error.cause in {Cause.FORBIDDEN, Cause.CONFIGURATION}:
                    raise
                trouble = f"cannot be removed: {error.message}"
            time.sleep(pause)
            pause = min(2.0, pause * 2)
        raise self.error(trouble)

    def error(self, what: str) -> SubstrateError:
        """Return an error about the gang of this Job."""
        return SubstrateError(
            f"The gang {self.name} {what}",
            substrate=SUBSTRATE_NAME,
            next_step=f"Look at: kubectl -n {self._namespace} get jobs,pods.",
        )
