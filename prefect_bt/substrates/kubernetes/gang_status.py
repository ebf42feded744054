"""Status of the nodes of one attempt, from its pods and from its objects in the store."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from prefect_bt.errors import StoreError, SubstrateError
from prefect_bt.host.nodes.files import AGENT_UNRESPONSIVE
from prefect_bt.ledger.node_objects import GangObjects, GangRecord
from prefect_bt.ledger.records import Cause, NodePhase, NodeStatus, StopReason
from prefect_bt.ledger.requests import StopRequest
from prefect_bt.substrates.kubernetes.gang_watch import GangWatch
from prefect_bt.substrates.kubernetes.job_objects import JobObjects
from prefect_bt.substrates.kubernetes.names import AGENT, COMMANDS
from prefect_bt.substrates.kubernetes.node_status import (
    explain_end,
    fail_to_start,
    lose,
    stop_before_start,
)
from prefect_bt.substrates.kubernetes.pods.pod_states import (
    IMAGE_CAUSES,
    PodView,
    Problem,
    read_pod,
)
from prefect_bt.substrates.kubernetes.pods.waiting_message import WAITING_INTERVAL, WaitingMessage

CAUSE_TIMEOUT: Final = 10.0
"""Longest wait for Kubernetes to report why a container ended, in seconds."""
_NO_POD: Final = Problem(Cause.LAUNCH_FAILED, "Kubernetes has not created its pod")
_START_TIMEOUT: Final = 30.0
"""Age in seconds at which a Job that is suspended, or missing without pods, has failed to start."""
_ROOM_CAUSES: Final = frozenset({Cause.UNSCHEDULABLE, Cause.QUOTA_EXCEEDED})
_STARTING: Final = frozenset({NodePhase.LAUNCHED, NodePhase.STAGING})


class KubernetesGang:
    """One attempt, observed from any process. Safe to use from several threads.

    `patience`: seconds to wait for pods that do not start. `queue`: Kueue's, which starts the Job.
    """

    def __init__(
        self,
        job: JobObjects,
        objects: GangObjects,
        record: GangRecord,
        *,
        patience: float,
        queue: str = "",
    ) -> None:
        self.objects, self.record, self.watch = objects, record, GangWatch(job)
        self.job, self._patience, self._queue = job, patience, queue
        self.clock: Callable[[], float] = time.time
        self._requests: dict[int, StopRequest] = {}
        self._unsent: set[int] = set()
        """Ranks whose request is not in the store yet."""
        self._blocked: dict[int, tuple[float, Problem]] = {}
        """Rank -> time since when it is blocked, and the reason."""
        self._messages: dict[int, WaitingMessage] = {}
        """Rank -> what is shown of the reason."""
        self._final: dict[int, NodeStatus] = {}
        """Final statuses; `observe` returns them unchanged."""
        self._unexplained: dict[int, float] = {}
        """Rank -> time since when the reason of its container's end is awaited."""
        self._waiting, self._waiting_at = "", 0.0
        self._removing = threading.Lock()
        self._is_removed = False

    # -- observing --------------------------------------------------------------------------

    def observe(self, rank: int) -> NodeStatus:
        """Return the rank's status, from cached data if the store or the API does not answer."""
        if rank in self._final:
            return self._final[rank]
        self._send_request(rank)
        self.watch.start()
        status = self.objects.read_status(rank) or NodeStatus(rank)
        if status.is_over:
            return self._observe_over(status)
        return self._observe_pod(status) if self.watch.is_listed else status

    def _observe_pod(self, status: NodeStatus) -> NodeStatus:
        pod = self.watch.find(status.rank)
        if pod is None:
            return self._observe_missing(status)
        if not pod.exists or pod.has_ended or pod.agent_ended:
            return self._observe_lost(status, pod)
        if status.phase in _STARTING:
            return self._observe_starting(status, pod)
        return self._explain(status) if status.commands_ended else status

    def _observe_over(self, status: NodeStatus) -> NodeStatus:
        """Return the agent's final status.

        Wait up to CAUSE_TIMEOUT for Kubernetes to report why the container ended.
        """
        pod = self.watch.find(status.rank)
        unexplained = status.stop_reason is StopReason.CONTAINER_GONE and status.cause is None
        pending = not self.watch.is_listed or (
            pod is not None and pod.exists and not pod.has_ended and pod.failure is None
        )
        if unexplained and pending:
            since = self._unexplained.setdefault(status.rank, self.clock())
            if self.clock() - since < CAUSE_TIMEOUT:
                return replace(status, phase=NodePhase.FLUSHING)
        return self._conclude(self._explain(status))

    def _observe_starting(self, status: NodeStatus, pod: PodView) -> NodeStatus:
        if not pod.has_started and (stop_reason := self._find_request(status.rank).reason):
            with suppress(SubstrateError):  # else the next call deletes it
                self.job.delete_pod(pod.name)
                return self._give_verdict(stop_before_start(status, stop_reason, self.clock()))
            return status
        if pod.failure is not None and pod.failed_container == COMMANDS:
            return self._observe_early_end(status, pod.failure)
        blocked = pod.blocked
        if blocked is None and pod.has_started and status.phase is NodePhase.LAUNCHED:
            logs = f"kubectl -n {self.record.namespace} logs {pod.name} -c {AGENT}"
            what = f"its agent has not reported: does the pod reach the store? See: {logs}"
            blocked = Problem(Cause.STORE_FAILED, what)
        problems = () if blocked is None else (blocked,)
        if not pod.is_creating:
            return self._wait(status, problems)
        warnings = () if pod.has_sandbox else self._find_warnings(pod)
        return self._wait(status, warnings or problems, is_limited=bool(warnings))

    def _find_warnings(self, pod: PodView) -> tuple[Problem, ...]:
        """Return the warnings about a pod. A pod that starts in WAITING_INTERVAL has none."""
        since, _ = self._blocked.get(pod.rank, (self.clock(), None))
        if pod.rank in self._messages or self.clock() - since >= WAITING_INTERVAL:
            return self.watch.find_warnings(pod)
        return ()

    def _observe_early_end(self, status: NodeStatus, failure: Problem) -> NodeStatus:
        """Return the status of a node whose commands container ended before a command ran."""
        latest = self._read_latest(status)
        if latest is None or latest.phase not in _STARTING:
            return status
        return self._give_verdict(fail_to_start(latest, failure, self.clock()))

    def _observe_missing(self, status: NodeStatus) -> NodeStatus:
        """Return the status of a rank without a pod, or whose pod went before the watch began."""
        if status.phase is not NodePhase.LAUNCHED:
            return self._observe_vanished(status)
        if stop_reason := self._find_request(status.rank).reason:
            return self._give_verdict(stop_before_start(status, stop_reason, self.clock()))
        missing = self.watch.find_missing_reason()
        if missing.is_suspended and self._queue:
            return self._wait_in_queue(status)
        not_started = missing.is_job_gone or missing.is_suspended
        if not_started and self.clock() - self.record.created_at > _START_TIMEOUT:
            problem = Problem(Cause.LAUNCH_FAILED, "its Job was deleted before it had pods")
            if missing.is_suspended:
                why = "the process that launched it died before it started the Job"
                problem = Problem(Cause.LAUNCH_FAILED, why)
            return self._give_verdict(lose(status, problem, self.clock()))
        return self._wait(status, (missing.problem or _NO_POD,))

    def _observe_vanished(self, status: NodeStatus) -> NodeStatus:
        """Return the status of a rank whose agent has reported, and whose pod was never seen."""
        with suppress(SubstrateError):
            pods = [read_pod(pod) for pod in self.job.list_pods()["items"]]
            if all(pod.rank != status.rank for pod in pods):
                return self._observe_lost(status, PodView("", status.rank, exists=False))
        return status

    def _observe_lost(self, status: NodeStatus, pod: PodView) -> NodeStatus:
        """Return the final status of the agent of a pod that ended, else a lost status."""
        latest = self._read_latest(status)
        if latest is None:
            return status
        if latest.is_over:
            return self._observe_over(latest)
        if stop_reason := self._find_stop_before_start(latest, pod):
            return self._give_verdict(stop_before_start(latest, stop_reason, self.clock()))
        if pod.failure is not None and pod.failure.cause is Cause.CONFIGURATION:
            return self._give_verdict(fail_to_start(latest, pod.failure, self.clock()))
        return self._give_verdict(lose(latest, pod.failure, self.clock()))

    def _find_stop_before_start(self, status: NodeStatus, pod: PodView) -> str:
        """Return the reason of the stop that ended a pod before its start; "" for none.

        A stop deletes a pod that has not started. Kubernetes then fails the Job and deletes its
        other pods, perhaps before their ranks have requests.
        """
        if status.started_at is not None:
            return ""
        reason = self._find_request(status.rank).reason
        if reason or (pod.failure is not None and pod.failure.cause is not Cause.POD_DELETED):
            return reason
        for rank in range(self.record.size):
            other = self._final.get(rank) or self.objects.read_status(rank)
            if other and other.is_over and other.stop_reason and other.started_at is None:
                return other.reason
        return ""

    def _read_latest(self, status: NodeStatus) -> NodeStatus | None:
        """Return the agent's newest status, else `status`; None if the store does not answer."""
        try:
            return self.objects.read_latest_status(status.rank) or status
        except StoreError:
            return None

    def _explain(self, status: NodeStatus) -> NodeStatus:
        pod = self.watch.find(status.rank)
        stop_reason = self._find_request(status.rank).reason if status.stop_reason else ""
        return explain_end(status, pod.failure if pod else None, stop_reason)

    # -- waiting for pods -------------------------------------------------------------------

    def _wait(
        self,
        status: NodeStatus,
        problems: tuple[Problem, ...],
        *,
        is_limited: bool = True,
    ) -> NodeStatus:
        """Return the status of a node that has not started. It fails after `patience` seconds.

        The last of the problems is the reason. `is_limited`: False for work in progress, such as a
        pull.
        """
        rank, now = status.rank, self.clock()
        if not problems:
            self._blocked.pop(rank, None)
            self._messages.pop(rank, None)
            self._publish_waiting()
            return status
        blocked = problems[-1]
        since, before = self._blocked.get(rank, (now, blocked))
        if before.cause in _ROOM_CAUSES and blocked.cause not in _ROOM_CAUSES:
            since = now  # there is room now, perhaps on a machine that was added
            self._messages.pop(rank, None)
        if blocked.cause is Cause.IMAGE_PULL_FAILED and before.cause in IMAGE_CAUSES:
            blocked = before  # older kubelets name the reason in the first message only
        is_shown = rank in self._messages or now - since >= WAITING_INTERVAL
        if is_shown and not is_limited:
            since = now
        self._blocked[rank] = since, blocked
        if is_limited and (blocked.is_permanent or now - since >= self._patience):
            return self._give_up(status, blocked)
        if not is_shown:
            return status
        messages = [problem.message for problem in (*problems[:-1], blocked)]
        text = self._messages.setdefault(rank, WaitingMessage()).choose(messages, now)
        self._publish_waiting()
        return replace(status, waiting=text)

    def _wait_in_queue(self, status: NodeStatus) -> NodeStatus:
        """Return the status of a node whose Job Kueue holds: the patience begins when it starts."""
        blocked = Problem(Cause.UNSCHEDULABLE, f"it waits in the queue {self._queue} of Kueue")
        self._blocked[status.rank] = self.clock(), blocked
        message = self._messages.setdefault(status.rank, WaitingMessage())
        text = message.choose([blocked.message], self.clock())
        self._publish_waiting()
        return replace(status, waiting=text)

    def _give_up(self, status: NodeStatus, blocked: Problem) -> NodeStatus:
        """Fail the node, and delete its pod so that it cannot start later."""
        pod = self.watch.find(status.rank)
        # The verdict is first: an observer that saw the request alone would read it as a stop.
        verdict = self._give_verdict(fail_to_start(status, blocked, self.clock()))
        self._request(status.rank, StopRequest("it did not start in time", force=True))
        if pod is not None and pod.exists:
            with suppress(SubstrateError):
                self.job.delete_pod(pod.name)
        return verdict

    def _publish_waiting(self) -> None:
        """Publish the reason why the lowest waiting rank has not started; `logs` shows it."""
        # A copy: another thread may see that a rank waits no more.
        first, message = min(self._messages.copy().items(), default=(None, WaitingMessage()))
        text = "" if first is None else f"rank {first}: {message.text}"
        if text != self._waiting and self.clock() - self._waiting_at >= WAITING_INTERVAL:
            self._waiting_at = self.clock()
            with suppress(StoreError):
                self.objects.write_waiting(text)
                self._waiting = text

    # -- concluding -------------------------------------------------------------------------

    def _give_verdict(self, status: NodeStatus) -> NodeStatus:
        """Store a final status that the agent did not write, and return the first one.

        Every process then returns the same one, and each of its threads.
        """
        first = self._final.setdefault(status.rank, status)
        if first is status:
            with suppress(StoreError):
                self.objects.rank(status.rank).write_verdict(status)
        return self._conclude(first)

    def _conclude(self, status: NodeStatus) -> NodeStatus:
        """Keep the status. Delete the Job once every rank has a final status."""
        status = self._final.setdefault(status.rank, status)
        if len(self._final) == self.record.size:
            self.watch.close()
            with suppress(SubstrateError):  # the next launch or the removal deletes it
                self.job.delete()
        return status

    # -- acting -----------------------------------------------------------------------------

    def stop(self, rank: int, request: StopRequest) -> None:
        """Request a stop. If the store does not answer, `observe` sends the request later."""
        if not self.observe(rank).is_over:
            before = self._find_request(rank)
            force = request.force or before.force
            self._request(rank, replace(request, force=force, kill=before.kill))

    def kill_commands(self, rank: int) -> bool:
        """Request that the agent kills the commands. Return whether any run. SubstrateError."""
        if self.observe(rank).phase is not NodePhase.RUNNING:
            return False
        request = replace(self._find_request(rank), kill=uuid.uuid4().hex)
        try:
            self.objects.requests.write(rank, request)
        except StoreError as error:
            raise self.job.error(
                f"could not receive the request for rank {rank}: {error}"
            ) from error
        self._requests[rank] = request
        return True

    def kill_unresponsive(self, rank: int) -> None:
        """Delete the pod at once if its agent did not answer a stop request."""
        status = self.observe(rank)
        if status.is_over or not self._find_request(rank).reason:
            return
        pod = self.watch.find(rank)
        if pod is not None and pod.exists:
            with suppress(SubstrateError):  # the next launch or the removal deletes it
                self.job.delete_pod(pod.name)
        problem = Problem(Cause.NODE_LOST, AGENT_UNRESPONSIVE)
        self._give_verdict(lose(status, problem, self.clock()))

    def remove(self) -> None:
        """Delete the Job with the objects that it owns, and the objects in the store. Idempotent.

        SubstrateError. The record is deleted last.
        """
        with self._removing:
            if self._is_removed:
                return
            self.job.end()
            self.watch.close()
            try:
                self.objects.delete()
            except StoreError as error:
                raise self.job.error(f"cannot be removed: {error}") from error
            self._is_removed = True

    def _request(self, rank: int, request: StopRequest) -> None:
        self._requests[rank] = request
        self._unsent.add(rank)
        self._send_request(rank)

    def _send_request(self, rank: int) -> None:
        """Write the rank's pending request. Keep it pending if the store does not answer."""
        if rank in self._unsent:
            with suppress(StoreError):
                self.objects.requests.write(rank, self._requests[rank])
                self._unsent.discard(rank)

    def _find_request(self, rank: int) -> StopRequest:
        """Return the rank's request, from this process or from another."""
        if rank not in self._requests and self.objects.has_request(rank):
            with suppress(StoreError):
                self._requests[rank] = self.objects.requests.read(rank)
        return self._requests.get(rank, StopRequest())
