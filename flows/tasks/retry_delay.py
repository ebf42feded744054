"""The pause between two attempts, waited out in the next one, where a stop is heard at once.

Prefect's own delay is one long sleep that nothing wakes: a job that was asked to stop would go on
for as long. So Prefect retries without delay, and the attempt begins by waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from prefect.logging import get_run_logger
from prefect.runtime import task_run

from prefect_bt.attempts.job_context import JobContext
from prefect_bt.attempts.lifecycle import decide_job_retry
from prefect_bt.attempts.retry_policy import compute_retry_delay
from prefect_bt.errors import StoreError
from prefect_bt.flows.tasks.report import publish_job_card, transition_job
from prefect_bt.ledger.states import JobState
from prefect_bt.text.control_characters import escape_controls

POLL_INTERVAL = 0.1
MIN_REPORTED_SECONDS = 0.05


def wait_before_retry(site: JobContext, stop_requested: Callable[[], bool]) -> None:
    """Until the policy lets the next attempt begin, or `stop_requested` is true.

    Nothing is waited for before a first attempt, nor before one that a person asked for. After a
    crash of the flow the time since the last attempt's end counts. While it waits the job is
    CREATED, and its card, its event and the run's log say why and how long.
    """
    again = task_run.get_run_count() > 1
    event = site.ledger.list_events(site.job_id)[-1]
    if not again and event.state is JobState.CREATED and event.attempt is None:
        return
    outcomes = site.ledger.list_outcomes(site.job_id)
    if not outcomes or outcomes[-1].failure is None or stop_requested():
        return
    last = outcomes[-1]
    delay = compute_retry_delay(outcomes, site.record.retries, job_id=site.job_id)
    # In full where Prefect retries: should no attempt begin, say for the store, nothing spins.
    since = 0.0 if again else max(0.0, time.time() - (last.ended_at or 0.0))
    left = delay - since
    soon = f"in {left:.1f} s" if left >= MIN_REPORTED_SECONDS else "now"
    why = f"Attempt {last.attempt + 1} begins {soon}: {decide_job_retry(site).reason}."
    get_run_logger().warning("%s Attempt %d: %s", why, last.attempt, escape_controls(last.message))
    with suppress(StoreError):  # only for show: the attempt asks the store with more patience
        if event.state is not JobState.CREATED:
            # With the attempt that failed: a person's wish to try again names none.
            transition_job(site, JobState.CREATED, message=why, attempt=last.attempt)
        publish_job_card(site)
    due = time.monotonic() + left
    while (rest := due - time.monotonic()) > 0 and not stop_requested():
        time.sleep(min(POLL_INTERVAL, rest))
