"""Follow the log lines of a job until it is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from prefect_bt.logs.job_reader import ALL_LINES, MAX_READ_SECONDS, JobLogs
from prefect_bt.logs.line_filter import JobLine, LineFilter

MIN_PAUSE: Final = 0.2
MAX_PAUSE: Final = 2.0
"""Seconds between two passes: the pause grows while there are no new lines."""
LINGER: Final = 5.0
"""Seconds to wait, after a job is over, for logs that are not archived."""


def follow_lines(
    logs: JobLogs,
    query: LineFilter = ALL_LINES,
    *,
    limit: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
    refresh: Callable[[], None] = lambda: None,
) -> Iterator[JobLine | None]:
    """Yield every line that exists and that follows, until the job is over and all is read.

    With `limit`, yield only the newest of the lines that exist. None precedes every pause.
    `refresh` is called between passes: it may write the end of a job whose process died. A job that
    is over before it printed anything yields nothing.
    """
    pause, lingered = MIN_PAUSE, 0.0
    if limit is not None:
        yield from logs.read_newest(query, limit)
    while True:
        # Read first, so that the pass below finds everything written before the job ended.
        over = logs.ledger.get_state(logs.record.id).terminal
        came = False
        for line in logs.read_new(query, max_seconds=MAX_READ_SECONDS):
            came = True
            yield line
        if over and not came and (not logs.has_unread() or lingered >= LINGER):
            yield from logs.read_new(query, include_partial=True)
            return
        pause = MIN_PAUSE if came else min(pause * 1.5, MAX_PAUSE)
        lingered = lingered + pause if over and not came else 0.0
        yield None
        if not over:
            refresh()
        sleep(pause)
