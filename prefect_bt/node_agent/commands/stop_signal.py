"""Collect the requests to end the commands: why, and whether by force.

Requests come from stop.json, from a signal to the agent, and from a missing owner of the job. The
first reason is final. Force comes from a later request, or from the agent's own deadline.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Final

from prefect_bt.host.job_lock import is_owned
from prefect_bt.host.nodes.files import read_record
from prefect_bt.host.state_folder import NodeFolder, NodeRecord
from prefect_bt.ledger.records import StopReason
from prefect_bt.ledger.requests import StopRequest

TERMINATION_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
POLL_INTERVAL: Final = 0.1
OWNER_POLL_INTERVAL: Final = 1.0
FORCE_MARGIN_SECONDS: Final = 10.0
"""Seconds after the grace in which the gang may force the stop before the agent does."""


class StopMonitor:
    """Collects stop requests. `reason` is the first reason, empty before any request."""

    def __init__(self, folder: NodeFolder, record: NodeRecord, *, grace: float) -> None:
        self.reason = ""
        self.force = False
        self._folder, self._record, self._grace = folder, record, grace
        self._signal = 0
        self._deadline: float | None = None
        self._looked = 0.0
        self._asked_owner = 0.0
        self._last_owned = time.monotonic()

    def install_signal_handlers(self) -> None:
        """Treat SIGTERM, SIGINT and SIGHUP as polite requests, also those that came before."""
        for number in TERMINATION_SIGNALS:
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINATION_SIGNALS)

    def poll(self) -> None:
        """Check every source, each at its own interval; cheap to call often."""
        now = time.monotonic()
        if self._signal:
            self._request_stop(StopReason.STOPPED, now + self._grace)
        if now - self._looked >= POLL_INTERVAL:
            self._looked = now
            self._check_request(now)
        if now - self._asked_owner >= OWNER_POLL_INTERVAL:
            self._asked_owner = now
            self._check_owner(now)
        if self._deadline is not None and now >= self._deadline:
            self.force = True

    def _check_request(self, now: float) -> None:
        if not self._folder.stop_request.exists():
            return
        request = read_record(StopRequest, self._folder.stop_request)
        if request is not None:
            grace = self._grace if request.grace is None else request.grace
            self._request_stop(
                request.reason or StopReason.STOPPED, now + grace + FORCE_MARGIN_SECONDS
            )
            self.force = self.force or request.force

    def _check_owner(self, now: float) -> None:
        limit = self._record.orphan_deadline
        if limit is None:
            return
        if is_owned(Path(self._record.state_dir), self._record.job_id):
            self._last_owned = now
        elif now - self._last_owned >= limit:
            self._request_stop(StopReason.ORPHANED, now + self._grace)

    def _request_stop(self, reason: str, deadline: float) -> None:
        if not self.reason:
            self.reason = reason
        if self._deadline is None or deadline < self._deadline:
            self._deadline = deadline

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signal = number
