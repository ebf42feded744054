"""Run the node of a pod: the guard and agent of any node, with a publisher of its state."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Final

from prefect_bt.errors import StoreError, SubstrateError
from prefect_bt.host.nodes.handle import HostHandle
from prefect_bt.ledger.node_objects import GangObjects
from prefect_bt.ledger.records import NodePhase, NodeStatus, StopReason
from prefect_bt.node_agent.pod.pod_files import PodFiles
from prefect_bt.node_agent.publishing.publisher import INTERVAL, GangPublisher, HostNode

EXIT_LOST: Final = 1


def run_node(pod: PodFiles) -> int:
    """Run the node to its end. Return the exit code of its commands."""
    launcher, lock = pod.create_node()
    handle = pod.handle
    started = launcher.start(handle.folder, (lock,))
    started.send_secrets(pod.secrets)
    os.close(lock)
    signal.signal(signal.SIGTERM, lambda _number, _frame: _handle_sigterm(handle))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    gang = pod.open_gang()
    start = _GangStart(gang, pod)
    publisher = GangPublisher(gang, lambda: [HostNode(handle)], prints=True)
    while not handle.observe().is_over:
        if publisher.step():
            start.advance()
        time.sleep(INTERVAL)
    publisher.finish()
    return _exit_code(handle.observe())


class _GangStart:
    """Starts the commands when every rank is ready.

    Otherwise a gang with a missing rank would hold its machines while it waits.
    """

    def __init__(self, gang: GangObjects, pod: PodFiles) -> None:
        self._gang, self._rank, self._size = gang, pod.plan.rank, pod.plan.group_size
        self._folder = pod.handle.folder
        self._announced = False

    def advance(self) -> None:
        """Write the ready marker, and start the commands once all ranks have theirs.

        A store that fails delays the start.
        """
        if not self._folder.ready.exists() or self._folder.go.exists():
            return
        with suppress(StoreError):
            if not self._announced:
                self._gang.rank(self._rank).write_ready()
                self._announced = True
            if self._gang.count_ready() >= self._size:
                self._folder.go.touch()


def _handle_sigterm(handle: HostHandle) -> None:
    """Stop the node because Kubernetes ends the pod. A node that flushes continues."""
    is_stopping = handle.folder.stop_request.exists()  # with a reason and a grace, which stay
    if is_stopping or handle.observe().commands_ended:  # the commands' exit code is already final
        return
    with suppress(SubstrateError):
        handle.stop(reason=StopReason.POD_DELETED)


def _exit_code(status: NodeStatus) -> int:
    """Return the commands' exit code.

    0 for a straggler, which is not a failure: Kubernetes deletes the other pods of a Job once one
    of its pods fails.
    """
    if status.phase is NodePhase.LOST:
        return EXIT_LOST
    return 0 if status.stop_reason is StopReason.STRAGGLER else status.exit_code or 0
