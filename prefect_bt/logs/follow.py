"""Follow the log lines of a job until it is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from prefect_bt.errors import StoreError
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.job_reader import ALL_LINES, MAX_READ_SECONDS, JobLogs
from prefect_bt.logs.line_filter import JobLine, LineFilter
from prefect_bt.object_store.protocols import SupportsLinks

MIN_PAUSE: Final = 0.2
MAX_PAUSE: Final = 2.0
"""Seconds between two passes: the pause grows while there are no new lines."""
LINGER: Final = 5.0
"""Seconds to wait, after a job is over, for logs that are not archived."""
RECORDS_INTERVAL: Final = 5.0
"""Seconds after which the records of a running job are read again although it has no new event."""
REMOTE_STATE_INTERVAL: Final = 1.0
"""Seconds between two reads of the state in a bucket."""
MAX_OUTAGE: Final = 600.0
"""Seconds of an outage of the store after which the following ends."""


def follow_lines(  # noqa: PLR0913 (what the caller sees between two passes)
    logs: JobLogs,
    query: LineFilter = ALL_LINES,
    *,
    limit: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
    refresh: Callable[[], None] = lambda: None,
    on_outage: Callable[[StoreError], None] = lambda _: None,
) -> Iterator[JobLine | None]:
    """Yield every line that exists and that follows, until the job is over and all is read.

    With `limit`, yield only the newest of the lines that exist. None precedes every pause.
    `refresh` is called between passes: it may write the end of a job whose process died. A job that
    is over before it printed anything yields nothing. `on_outage` is called when the store does not
    answer; the StoreError is raised after MAX_OUTAGE.
    """
    pause, lingered = MIN_PAUSE, 0.0
    state = _StateReader(logs)
    outage: float | None = None
    if limit is not None:
        yield from logs.read_newest(query, limit)
    while True:
        came = over = False
        try:
            # Read first, so that the pass below finds everything written before the job ended.
            over = state.is_over()
            for line in logs.read_new(query, max_seconds=MAX_READ_SECONDS, reread=state.is_new):
                came = True
                yield line
            state.is_new, outage = False, None
        except StoreError as error:
            state.is_new = True
            if outage is None:
                outage = time.monotonic()
                on_outage(error)
            if time.monotonic() - outage > MAX_OUTAGE:
                raise
            over = False
        if over and not came and (not logs.has_unread() or lingered >= LINGER):
            yield from logs.read_new(query, include_partial=True)
            return
        pause = MIN_PAUSE if came else min(pause * 1.5, MAX_PAUSE)
        lingered = lingered + pause if over and not came else 0.0
        yield None
        if not over:
            refresh()
        sleep(pause)


class _StateReader:
    """Reads the state of the job, seldom where each read is a request over the network."""

    def __init__(self, logs: JobLogs) -> None:
        self._logs = logs
        is_folder = isinstance(logs.ledger.store, SupportsLinks)
        self._interval = 0.0 if is_folder else REMOTE_STATE_INTERVAL
        self._due = self._records_due = 0.0
        self._event: int = -1
        self.is_new = True
        """Whether records of the job may have changed since they were read."""

    def is_over(self) -> bool:
        """Return whether the job is known to be over. StoreError."""
        now = time.monotonic()
        if now < self._due:
            return False
        number, last = self._logs.ledger.find_last_event(self._logs.record.id)
        is_running = last is not None and last.state is JobState.RUNNING
        if number != self._event or not is_running or now >= self._records_due:
            self._records_due = now + RECORDS_INTERVAL
            self._event, self.is_new = number, True
        is_over = last is not None and last.state.terminal
        self._due = now if is_over else now + self._interval
        return is_over
