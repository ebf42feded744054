"""Run the node of a pod: the guard and agent of any node, with a publisher beside them."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Final

from prefect_bt.errors import StoreError, SubstrateError
from prefect_bt.host.nodes.container_pipes import open_pipes, signal_all
from prefect_bt.host.nodes.handle import HostHandle
from prefect_bt.ledger.node_objects import GangObjects, NodeRequest
from prefect_bt.ledger.records import NodePhase, NodeStatus, StopReason
from prefect_bt.node_agent.pod.pod_files import PodFiles
from prefect_bt.node_agent.pod.publisher import INTERVAL, NodePublisher

EXIT_LOST: Final = 1


def run_node(pod: PodFiles) -> int:
    """Run the node to its end; return the exit code of its commands."""
    launcher, lock = pod.create_node()
    handle = pod.handle
    started = launcher.start(handle.folder, (lock,))
    started.send_secrets(pod.secrets)
    os.close(lock)
    signal.signal(signal.SIGTERM, lambda _number, _frame: _stop_politely(handle))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    gang = pod.open_gang()
    start = _GangStart(gang, pod)
    publisher = NodePublisher(
        gang.rank(pod.plan.rank),
        observe=handle.observe,
        read_log=handle.read_log,
        on_request=lambda before, now: _obey(handle, before, now),
    )
    while not handle.observe().is_over:
        if publisher.publish():
            start.advance()
        time.sleep(INTERVAL)
    publisher.publish_end()
    return _exit_code(handle.observe())


class _GangStart:
    """The start that all nodes of a gang share: each says that it is ready, and goes when all are.

    A gang that is not whole would wait for its missing ranks with the machines of the others.
    """

    def __init__(self, gang: GangObjects, pod: PodFiles) -> None:
        self._gang, self._rank, self._size = gang, pod.plan.rank, pod.plan.group_size
        self._folder = pod.handle.folder
        self._announced = False

    def advance(self) -> None:
        """Take the next step that can be taken now; a store that fails delays it."""
        if not self._folder.ready.exists() or self._folder.go.exists():
            return
        with suppress(StoreError):
            if not self._announced:
                self._gang.rank(self._rank).write_ready()
                self._announced = True
            if self._gang.count_ready() >= self._size:
                self._folder.go.touch()


def _stop_politely(handle: HostHandle) -> None:
    """Pass on that Kubernetes ends the pod; a node that flushes goes on with it."""
    asked = handle.folder.stop_request.exists()  # with its own reason and grace, which stay
    if (
        asked or handle.observe().commands_ended
    ):  # how they ended is not changed by what comes after
        return
    with suppress(SubstrateError):
        handle.stop(reason=StopReason.POD_DELETED)


def _obey(handle: HostHandle, before: NodeRequest, now: NodeRequest) -> None:
    if now.reason:
        with suppress(SubstrateError):
            handle.stop(reason=now.reason, force=now.force, grace=now.grace)
    if now.kill != before.kill:
        pipes = open_pipes(handle.folder, only_container_reports=True)
        signal_all(pipes, signal.SIGKILL)
        for descriptor in pipes:
            os.close(descriptor)


def _exit_code(status: NodeStatus) -> int:
    """Return the commands' exit code.

    0 for a straggler, which is no failure: Kubernetes deletes the other pods of a Job once one of
    its pods fails.
    """
    if status.phase is NodePhase.LOST:
        return EXIT_LOST
    return 0 if status.stop_reason is StopReason.STRAGGLER else status.exit_code or 0
