"""Publish the status and the log of the nodes of this machine, and pass them requests of others.

It is the same for processes, containers and pods: everything goes through the store, in the folder
of the attempt (ledger.node_objects). What is new is published often while a process reads it, and
seldom otherwise. The nodes run on while the store does not answer, and are published later.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from prefect_bt.errors import StoreError, SubstrateError
from prefect_bt.host.nodes.container_pipes import open_pipes, signal_all
from prefect_bt.host.nodes.files import read_record
from prefect_bt.host.nodes.handle import HostHandle
from prefect_bt.host.state_folder import NodeRecord
from prefect_bt.ledger.node_objects import LOG, METRICS, GangObjects, RankObjects
from prefect_bt.ledger.records import NodeStatus, StopReason
from prefect_bt.ledger.requests import StopRequest

INTERVAL: Final = 0.5
"""Seconds between two steps, each of which reads the nodes' states on this machine."""
REQUEST_INTERVAL: Final = 2.0
"""Seconds between two listings of the requests."""
READ_INTERVAL: Final = 1.5
"""Seconds between two publications of a node while a process reads them."""
IDLE_INTERVAL: Final = 30.0
"""Seconds between two publications of a node that no process reads."""
METRICS_INTERVALS: Final = 4
"""Publications of the log for each publication of the metrics, which change every few seconds."""
READER_SECONDS: Final = 30.0
"""Seconds for which the mark of a reader counts."""
ANSWER_SECONDS: Final = 20.0
"""Seconds after which the stop of a job reaches its nodes although no flow passes it on."""
MIN_SEGMENT_BYTES: Final = 64 * 1024
MAX_SEGMENT_BYTES: Final = 4 * 1024 * 1024
SEGMENT_SHARE: Final = 16
"""A segment has at least 1/SEGMENT_SHARE of the size of the log before it, within both limits."""
BYTES_PER_SECOND: Final = 2 * 1024 * 1024
"""Limit of the bytes that are sent again in a second: a long segment is sent less often."""
FINAL_STATUS_TIMEOUT: Final = 900.0
"""Longest time to retry the upload of the final status, in seconds."""


class ReadFile(Protocol):
    """Returns at most `limit` bytes of a file from `offset` on."""

    def __call__(self, *, offset: int, limit: int) -> bytes: ...


class PublishedNode(Protocol):
    """A node of this machine."""

    @property
    def rank(self) -> int: ...

    def observe(self) -> NodeStatus: ...

    def read_log(self, *, offset: int, limit: int) -> bytes: ...

    def read_metrics(self, *, offset: int, limit: int) -> bytes: ...

    def apply_request(self, before: StopRequest, now: StopRequest) -> None:
        """Act on a request that replaced another one."""
        ...


@dataclass(frozen=True)
class HostNode:
    """A node with a folder on this machine or in this pod."""

    handle: HostHandle

    @property
    def rank(self) -> int:
        return self.handle.rank

    def observe(self) -> NodeStatus:
        return self.handle.observe()

    def read_log(self, *, offset: int, limit: int) -> bytes:
        return self.handle.read_log(offset=offset, limit=limit)

    def read_metrics(self, *, offset: int, limit: int) -> bytes:
        return self.handle.read_metrics(offset=offset, limit=limit)

    def apply_request(self, before: StopRequest, now: StopRequest) -> None:
        if now.reason:
            with suppress(SubstrateError):
                self.handle.stop(reason=now.reason, force=now.force, grace=now.grace)
        if now.kill and now.kill != before.kill:
            self._kill_commands()

    def _kill_commands(self) -> None:
        folder = self.handle.folder
        record = read_record(NodeRecord, folder.record)
        if record is None or not record.contained:
            self.handle.kill_commands()
            return
        pipes = open_pipes(folder, only_container_reports=record.in_pod)
        signal_all(pipes, signal.SIGKILL)
        for descriptor in pipes:
            os.close(descriptor)


@dataclass
class _OpenSegment:
    """Segment of a file that still grows. `offset`: of its first byte."""

    offset: int = 0
    data: bytes = b""
    sent: int = 0

    @property
    def size_limit(self) -> int:
        return min(MAX_SEGMENT_BYTES, max(MIN_SEGMENT_BYTES, self.offset // SEGMENT_SHARE))


class _FilePublication:
    """What is published of a file that grows, in segments.

    A publisher before this one may have published a part.
    """

    def __init__(self, objects: RankObjects, file: str, read: ReadFile) -> None:
        self._objects, self._file, self._read = objects, file, read
        self._segment: _OpenSegment | None = None

    def publish(self, *, prints: bool = False) -> int:
        """Publish the rest of the file. Return the size of the segment that grows. StoreError."""
        if self._segment is None:
            segments = self._objects.list_segments(self._file)
            begin, size, _ = max(segments, default=(0, 0, ""))
            self._segment = _OpenSegment(begin, sent=size)
        segment = self._segment
        while True:
            room = segment.size_limit - len(segment.data)
            new = self._read(offset=segment.offset + len(segment.data), limit=room)
            if prints:
                _print(new)
            segment.data += new
            if len(segment.data) > segment.sent:
                self._objects.write_log(segment.data, offset=segment.offset, file=self._file)
                segment.sent = len(segment.data)
            if len(new) < room:
                return len(segment.data)
            self._segment = segment = _OpenSegment(segment.offset + len(segment.data))


class _NodePublication:
    """What is published of one node. A publisher before this one may have published a part."""

    def __init__(self, objects: RankObjects, node: PublishedNode, *, prints: bool) -> None:
        self.node, self.request = node, StopRequest()
        self._objects, self._prints = objects, prints
        self._log = _FilePublication(objects, LOG, node.read_log)
        self._metrics = _FilePublication(objects, METRICS, node.read_metrics)
        self._metrics_due = 0.0
        self._number: int | None = None
        self._published: NodeStatus | None = None
        self._due = 0.0

    @property
    def is_complete(self) -> bool:
        return self._published is not None and self._published.is_over

    def update(self, now: float, interval: float, *, soon: bool) -> None:
        """Publish what is new, if it is time or `soon`, or if the node is in another phase.

        StoreError.
        """
        if self.is_complete:
            return
        status = self.node.observe()
        if not (soon or now >= self._due or self._is_urgent(status)):
            return
        if self._number is None:
            self._number = self._objects.count_statuses()
        pause = self._log.publish(prints=self._prints) / BYTES_PER_SECOND
        if now >= self._metrics_due or status.is_over:
            self._metrics.publish()
            self._metrics_due = now + METRICS_INTERVALS * interval
        if status != self._published:
            self._objects.write_status(status, self._number)
            self._published, self._number = status, self._number + 1
        self._due = now + max(interval, pause)

    def _is_urgent(self, status: NodeStatus) -> bool:
        before = self._published
        return before is None or (status.phase, status.reason) != (before.phase, before.reason)


class GangPublisher:
    """Publisher of the nodes of one attempt that run on this machine, or in this pod.

    `prints`: also write the logs to the standard output, for `kubectl logs`.
    """

    def __init__(
        self,
        objects: GangObjects,
        list_nodes: Callable[[], Sequence[PublishedNode]],
        *,
        prints: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._objects, self._list_nodes, self._prints = objects, list_nodes, prints
        self._clock = clock
        self._nodes = dict[int, _NodePublication]()
        self._requests_due = 0.0
        self._mark: float = 0.0
        self._read_until = 0.0
        self._stop_seen: float | None = None
        self._is_behind = False
        """Whether a reader has come, and not all that is new is published yet."""

    def step(self, *, soon: bool = False) -> bool:
        """Publish what is due, and read the requests. Return False if the store failed.

        `soon`: whether to publish everything that is new.
        """
        try:
            self._find_nodes()
            now = self._clock()
            if now >= self._requests_due:
                self._requests_due = now + REQUEST_INTERVAL
                self._is_behind = self._read_requests() or self._is_behind
            interval = READ_INTERVAL if now < self._read_until else IDLE_INTERVAL
            for node in self._nodes.values():
                node.update(now, interval, soon=soon or self._is_behind)
            self._is_behind = False
        except StoreError as error:
            if self._prints:  # the last line of a guard's own log is a node's cause of death
                sys.stderr.write(f"{error}\n")
            return False
        return True

    def finish(self, *, timeout: float = FINAL_STATUS_TIMEOUT) -> None:
        """Publish everything, and retry for `timeout` seconds while the store fails."""
        deadline = time.monotonic() + timeout
        while not self.step(soon=True) and time.monotonic() < deadline:
            time.sleep(INTERVAL)

    def _find_nodes(self) -> None:
        for node in self._list_nodes():
            if node.rank not in self._nodes:
                objects = self._objects.rank(node.rank)
                self._nodes[node.rank] = _NodePublication(objects, node, prints=self._prints)

    def _read_requests(self) -> bool:
        """Pass the requests to the nodes. Return whether a process begins to read them."""
        pending = self._objects.requests.list_pending()
        for rank in pending.ranks & self._nodes.keys():
            request, node = self._objects.requests.read(rank), self._nodes[rank]
            if request != node.request:
                node.node.apply_request(node.request, request)
                node.request = request
        self._follow_stop(is_requested=pending.stops_job)
        if pending.reader_mark == self._mark:
            return False
        # The dates of the store are compared with each other: no machine's clock matters.
        now = self._clock()
        begins = now >= self._read_until
        self._mark, self._read_until = pending.reader_mark, now + READER_SECONDS
        return begins

    def _follow_stop(self, *, is_requested: bool) -> None:
        """Stop the nodes of a job whose stop no flow passes on: it is dead, or does not answer."""
        now = self._clock()
        if not is_requested:
            self._stop_seen = None
        elif self._stop_seen is None:
            self._stop_seen = now
        elif now - self._stop_seen > ANSWER_SECONDS:
            for node in self._nodes.values():
                if not (node.request.reason or node.node.observe().commands_ended):
                    request = StopRequest(StopReason.STOPPED)
                    node.node.apply_request(node.request, request)
                    node.request = request


def _print(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]
