"""Publish a node's status and log in the store, and pass requests of watchers to the node.

The node runs on while the store does not answer, and publishes later.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from prefect_bt.errors import StoreError
from prefect_bt.ledger.node_objects import NodeRequest, RankObjects
from prefect_bt.ledger.records import NodeStatus

INTERVAL: Final = 0.5
"""Seconds between two reads of the log and the status."""
REQUEST_INTERVAL: Final = 1.0
MIN_SEGMENT_BYTES: Final = 64 * 1024
MAX_SEGMENT_BYTES: Final = 4 * 1024 * 1024
SEGMENT_SHARE: Final = 16
"""A segment has at least 1/SEGMENT_SHARE of the size of the log before it, within both limits."""
BYTES_PER_SECOND: Final = 2 * 1024 * 1024
"""Limit of the bytes that are sent again in a second: a long segment is sent less often."""
FINAL_STATUS_TIMEOUT: Final = 900.0
"""Longest time to retry the upload of the final status, in seconds."""


@dataclass
class _OpenSegment:
    """Segment of the log that still grows. `offset`: of its first byte."""

    offset: int = 0
    data: bytes = b""
    sent: int = 0

    @property
    def size_limit(self) -> int:
        return min(MAX_SEGMENT_BYTES, max(MIN_SEGMENT_BYTES, self.offset // SEGMENT_SHARE))


@dataclass
class NodePublisher:
    """Publisher of one node. `read_log(offset=, limit=)` and `observe`: methods of its handle."""

    objects: RankObjects
    observe: Callable[[], NodeStatus]
    read_log: Callable[..., bytes]
    on_request: Callable[[NodeRequest, NodeRequest], None]
    """Called with the previous request and the new one."""
    _segment: _OpenSegment = field(default_factory=_OpenSegment)
    _statuses: int = -1
    _published: NodeStatus | None = None
    _next_log: float = 0.0
    _next_request: float = 0.0
    _request: NodeRequest = field(default_factory=NodeRequest)

    def publish(self) -> bool:
        """Publish changes. Return False if the store failed."""
        now = time.monotonic()
        try:
            status = self.observe()
            if now >= self._next_log or status.is_over:
                self._publish_log(now)
            self._publish_status(status)
            if now >= self._next_request and not status.is_over:
                self._next_request = now + REQUEST_INTERVAL
                self._read_request()
        except StoreError as error:
            sys.stderr.write(f"{error}\n")
            return False
        return True

    def publish_end(self) -> None:
        """Publish the final status. Retries for FINAL_STATUS_TIMEOUT seconds."""
        deadline = time.monotonic() + FINAL_STATUS_TIMEOUT
        while not self.publish() and time.monotonic() < deadline:
            time.sleep(INTERVAL)

    def _publish_status(self, status: NodeStatus) -> None:
        if status == self._published:
            return
        if self._statuses < 0:
            self._statuses = self.objects.count_statuses()
        self.objects.write_status(status, self._statuses)
        self._published, self._statuses = status, self._statuses + 1

    def _publish_log(self, now: float) -> None:
        segment = self._segment
        while True:
            room = segment.size_limit - len(segment.data)
            begin = segment.offset + len(segment.data)
            new = self.read_log(offset=begin, limit=room)
            _show(new)
            segment.data += new
            if len(segment.data) > segment.sent:
                self.objects.write_log(segment.data, offset=segment.offset)
                segment.sent = len(segment.data)
            if len(new) < room:
                break
            self._segment = segment = _OpenSegment(segment.offset + len(segment.data))
        self._next_log = now + len(segment.data) / BYTES_PER_SECOND

    def _read_request(self) -> None:
        request = self.objects.read_request()
        if request != self._request:
            before, self._request = self._request, request
            self.on_request(before, request)


def _show(data: bytes) -> None:
    """Write the log also to the standard output, for `kubectl logs`."""
    while data:
        data = data[os.write(1, data) :]
