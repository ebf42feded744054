"""Publish the nodes of a job that run on this machine: one of their guards does it for all.

The guard that holds the lock of the attempt's folder publishes. When its node ends, another one
takes the lock and continues where the store shows that the last one ended.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prefect_bt.errors import PrefectBtError
from prefect_bt.host.job_lock import is_owned, try_lock
from prefect_bt.host.state_folder import JobFolder, NodeFolder, NodeRecord
from prefect_bt.planning.plan import NodePlan

if TYPE_CHECKING:
    from prefect_bt.ledger.node_objects import GangObjects
    from prefect_bt.node_agent.publishing.publisher import GangPublisher, HostNode

START_DELAY: Final = 1.0
"""Age in seconds at which a node is published: a short one does not open the store for it."""
POLL_INTERVAL: Final = 0.5
ALIVE_INTERVAL: Final = 30.0
"""Seconds between two marks that the machine runs and reaches the store."""
END_TIMEOUT: Final = 5.0
"""Longest delay of a guard's exit by the last publication, in seconds."""
_ERRORS: Final = (PrefectBtError, OSError, ValueError, TypeError, KeyError)
"""Errors of a store that does not answer, or whose credentials or objects are damaged."""


class HostPublisher:
    """Publisher in the guard of one node. It does nothing for a node whose job needs no owner."""

    def __init__(self, folder: NodeFolder, record: NodeRecord, plan: NodePlan) -> None:
        self._attempt_folder = folder.path.parent
        self._record, self._plan = record, plan
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock: int | None = None
        self._publisher: GangPublisher | None = None
        self._objects: GangObjects | None = None
        self._alive_due = 0.0

    def start(self) -> None:
        """Publish in a thread, until `close`."""
        if self._record.orphan_deadline is not None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="publish")
            self._thread.start()

    def close(self) -> None:
        """Publish the ends of the nodes, if this guard publishes or if no flow archives them."""
        if self._thread is None:
            return
        self._closed.set()
        self._thread.join(END_TIMEOUT)
        if self._thread.is_alive():
            return
        is_owned_now = is_owned(Path(self._record.state_dir), self._record.job_id)
        if self._lock is not None or (not is_owned_now and self._acquire()):
            with suppress(*_ERRORS):  # the node has ended, and its flow archives the rest
                self._open().finish(timeout=END_TIMEOUT)

    def _run(self) -> None:
        delay = START_DELAY
        while not self._closed.wait(delay):
            delay = POLL_INTERVAL
            if self._lock is None and not self._acquire():
                continue
            try:
                self._publish()
            except _ERRORS:  # as if the store did not answer: the node goes on
                delay = ALIVE_INTERVAL

    def _publish(self) -> None:
        publisher = self._open()
        if publisher.step() and time.monotonic() >= self._alive_due:
            self._alive_due = time.monotonic() + ALIVE_INTERVAL
            assert self._objects is not None
            self._objects.mark_alive()

    def _acquire(self) -> bool:
        with suppress(OSError):
            descriptor = os.open(self._attempt_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if try_lock(descriptor):
                self._lock = descriptor
                return True
            os.close(descriptor)
        return False

    def _open(self) -> GangPublisher:
        if self._publisher is None:
            # Imported by the one guard that publishes.
            from prefect_bt.ledger.node_objects import GangObjects
            from prefect_bt.node_agent.publishing.publisher import GangPublisher
            from prefect_bt.object_store import open_store

            plan = self._plan
            objects = GangObjects.of_attempt(
                open_store(plan.store), plan.project_id, plan.job_id, plan.attempt
            )
            self._objects, self._publisher = objects, GangPublisher(objects, self._list_nodes)
        return self._publisher

    def _list_nodes(self) -> list[HostNode]:
        from prefect_bt.host.nodes.handle import HostHandle
        from prefect_bt.host.nodes.launch import iter_nodes
        from prefect_bt.node_agent.publishing.publisher import HostNode

        job = JobFolder(Path(self._record.state_dir), self._record.job_id)
        return [
            HostNode(HostHandle(job, attempt, rank))
            for attempt, rank in iter_nodes(job)
            if attempt == self._record.attempt
        ]
