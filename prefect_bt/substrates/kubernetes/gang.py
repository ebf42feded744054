"""The nodes of one attempt in a cluster, by its pods and by its objects in the store."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from prefect_bt.errors import StoreError, SubstrateError
from prefect_bt.host.nodes.files import AGENT_UNRESPONSIVE
from prefect_bt.ledger.node_objects import GangObjects, GangRecord, NodeRequest
from prefect_bt.ledger.records import Cause, NodePhase, NodeStatus
from prefect_bt.substrates.kubernetes.client import SUBSTRATE_NAME, ClusterClient
from prefect_bt.substrates.kubernetes.gang_watch import GangWatch
from prefect_bt.substrates.kubernetes.node_status import (
    explain_end,
    fail_to_start,
    lose,
    stop_before_start,
)
from prefect_bt.substrates.kubernetes.pod_states import IMAGE_CAUSES, PodView, Problem

REMOVAL_TIMEOUT: Final = 60.0
"""Longest wait for the pods of a removed gang to be gone, in seconds."""
_NO_POD: Final = Problem(Cause.LAUNCH_FAILED, "Kubernetes has not created its pod")
_NEVER_BEGUN: Final = 30.0
"""Seconds after which a Job without pods that is gone, or still suspended, was never begun."""


class KubernetesGang:
    """One attempt, seen from any process. Safe to use from several threads.

    `patience`: seconds to wait for pods that do not start. `is_queued`: Kueue begins the Job.
    """

    def __init__(  # noqa: PLR0913 (one gang)
        self,
        client: ClusterClient,
        objects: GangObjects,
        record: GangRecord,
        *,
        patience: float,
        is_queued: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.objects, self.record = objects, record
        self._client, self._patience, self._clock = client, patience, clock
        self._is_queued = is_queued
        self._core = f"/api/v1/namespaces/{record.namespace}"
        self._watch = GangWatch(client, record.namespace, record.name)
        self._requests: dict[int, NodeRequest] = {}
        self._blocked: dict[int, tuple[float, Problem]] = {}
        """Rank -> since when it does not start, and why."""
        self._final: dict[int, NodeStatus] = {}
        """Statuses that were concluded here and stand."""
        self._waiting = ""

    def start_watch(self) -> None:
        """Watch the pods from now on. Idempotent. ClusterError."""
        self._watch.start()

    # -- observing --------------------------------------------------------------------------

    def observe(self, rank: int) -> NodeStatus:
        if rank in self._final:
            return self._final[rank]
        status = self.objects.read_status(rank) or NodeStatus(rank)
        if status.is_over:
            return self._conclude(self._explain(status))
        with suppress(SubstrateError):  # else the node goes on; what its agent says is known
            self.start_watch()
            return self._observe_pod(status)
        return status

    def _observe_pod(self, status: NodeStatus) -> NodeStatus:
        pod, there = self._watch.find(status.rank)
        if pod is None or not there or pod.ended:
            return self._observe_absent(status, pod)
        if status.commands_ended:
            return self._explain(status)
        if status.phase in {NodePhase.LAUNCHED, NodePhase.STAGING}:
            return self._observe_starting(status, pod)
        return status

    def _observe_starting(self, status: NodeStatus, pod: PodView) -> NodeStatus:
        if not pod.began and (asked := self._find_request(status.rank).reason):
            return self._conclude(stop_before_start(status, asked, self._clock()))
        if pod.failure is not None:
            return self._conclude(fail_to_start(status, pod.failure, self._clock()))
        return self._wait(status, pod.blocked)

    def _observe_absent(self, status: NodeStatus, pod: PodView | None) -> NodeStatus:
        """Of a rank whose pod has ended or is gone; without a pod, it was never there."""
        try:
            latest = self.objects.read_latest_status(status.rank) or status
        except StoreError:
            return status
        if latest.is_over:
            return self._conclude(self._explain(latest))
        asked = self._find_request(status.rank).reason
        if asked and latest.started_at is None:
            return self._conclude(stop_before_start(latest, asked, self._clock()))
        if pod is not None:
            return self._conclude(lose(latest, pod.failure, self._clock()))
        problem, job_gone, suspended = self._watch.find_missing_reason()
        never_begun = job_gone or (suspended and not self._is_queued)
        if never_begun and self._clock() - self.record.created_at > _NEVER_BEGUN:
            gone = Problem(Cause.POD_DELETED, "its Job was deleted, or never begun")
            return self._conclude(lose(latest, gone, self._clock()))
        return self._wait(latest, problem or _NO_POD)

    def _wait(self, status: NodeStatus, blocked: Problem | None) -> NodeStatus:
        """Return the status of a node that does not start yet; after the patience it failed."""
        if blocked is None:
            self._blocked.pop(status.rank, None)
            return status
        since, before = self._blocked.get(status.rank, (self._clock(), blocked))
        if blocked.cause is Cause.IMAGE_PULL_FAILED and before.cause in IMAGE_CAUSES:
            blocked = before  # older kubelets name the reason in the first message only
        self._blocked[status.rank] = since, blocked
        if self._clock() - since >= self._patience:
            return self._give_up(status, blocked)
        self._publish_waiting(f"rank {status.rank}: {blocked.message}")
        return replace(status, waiting=blocked.message)

    def _give_up(self, status: NodeStatus, blocked: Problem) -> NodeStatus:
        """Conclude that the node does not start, and see to it that it does not start later."""
        pod, there = self._watch.find(status.rank)
        if pod is not None and there:
            if blocked.cause is Cause.LAUNCH_FAILED:
                blocked = self._watch.find_pod_warning(pod) or blocked
            with suppress(SubstrateError):
                self._delete_pod(pod, grace=0)
        return self._conclude(fail_to_start(status, blocked, self._clock()))

    def _publish_waiting(self, text: str) -> None:
        if text != self._waiting:
            with suppress(StoreError):
                self.objects.write_waiting(text)
                self._waiting = text

    def _explain(self, status: NodeStatus) -> NodeStatus:
        pod, _ = self._watch.find(status.rank)
        asked = self._find_request(status.rank).reason if status.stop_reason else ""
        return explain_end(status, pod.failure if pod else None, asked)

    def _conclude(self, status: NodeStatus) -> NodeStatus:
        """Keep the status. A gang that is over has nothing left in the cluster that could begin."""
        self._final[status.rank] = status
        if len(self._final) == self.record.size:
            with suppress(SubstrateError):  # its removal tries again
                self._delete_job()
        return status

    # -- acting -----------------------------------------------------------------------------

    def stop(self, rank: int, request: NodeRequest) -> None:
        """Ask the node to stop; a pod whose agent has not begun is deleted. SubstrateError."""
        if self.observe(rank).is_over:
            return
        before = self._find_request(rank)
        request = replace(request, force=request.force or before.force, kill=before.kill)
        self._write_request(rank, request)
        self.start_watch()
        pod, there = self._watch.find(rank)
        if pod is not None and there and not pod.began:
            self._delete_pod(pod)

    def kill_commands(self, rank: int) -> bool:
        if self.observe(rank).phase is not NodePhase.RUNNING:
            return False
        self._write_request(rank, replace(self._find_request(rank), kill=uuid.uuid4().hex))
        return True

    def kill_unresponsive(self, rank: int) -> None:
        """Delete the pod at once: its agent did not answer a stop. SubstrateError."""
        status = self.observe(rank)
        if status.is_over or not self._find_request(rank).reason:
            return
        self.start_watch()
        pod, there = self._watch.find(rank)
        if pod is not None and there:
            self._delete_pod(pod, grace=0)
        problem = Problem(Cause.NODE_LOST, AGENT_UNRESPONSIVE)
        self._conclude(lose(status, problem, self._clock()))

    def remove(self) -> None:
        """Delete the Job with all that it owns, and the objects in the store. SubstrateError."""
        selector = f"batch.kubernetes.io/job-name={self.record.name}"
        self._delete_job()
        deadline = time.monotonic() + REMOVAL_TIMEOUT
        while self._list_pods(selector):
            self._client.delete(
                f"{self._core}/pods",
                query={"labelSelector": selector, "gracePeriodSeconds": 0},
                action=f"delete the pods of Job {self.record.name}",
            )
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
        self._watch.close()
        try:
            self.objects.delete()
        except StoreError as error:
            raise self._error("cannot be removed", error) from error

    def _delete_job(self) -> None:
        path = f"/apis/batch/v1/namespaces/{self.record.namespace}/jobs/{self.record.name}"
        action = f"delete Job {self.record.name}"
        self._client.delete(path, query={"propagationPolicy": "Background"}, action=action)

    def _list_pods(self, selector: str) -> list[object]:
        found = self._client.request(
            "GET", f"{self._core}/pods", query={"labelSelector": selector}, action="list pods"
        )
        return found["items"]

    def _delete_pod(self, pod: PodView, *, grace: int | None = None) -> None:
        query = {} if grace is None else {"gracePeriodSeconds": grace}
        self._client.delete(
            f"{self._core}/pods/{pod.name}", query=query, action=f"delete pod {pod.name}"
        )

    def _find_request(self, rank: int) -> NodeRequest:
        """Return what was asked of the rank, from this process or another."""
        if rank not in self._requests:
            with suppress(StoreError):
                found = self.objects.rank(rank).read_request()
                if found == NodeRequest():
                    return found
                self._requests[rank] = found
        return self._requests.get(rank, NodeRequest())

    def _write_request(self, rank: int, request: NodeRequest) -> None:
        try:
            self.objects.rank(rank).write_request(request)
        except StoreError as error:
            raise self._error(f"cannot be told of a request to rank {rank}", error) from error
        self._requests[rank] = request

    def _error(self, what: str, error: StoreError) -> SubstrateError:
        return SubstrateError(
            f"The gang {self.record.name} {what}: {error}",
            substrate=SUBSTRATE_NAME,
            next_step="See that the store can be reached.",
        )
