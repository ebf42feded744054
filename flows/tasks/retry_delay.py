"""Prefect's delay between two attempts: the policy's decision, and a stop during the delay.

Prefect shows the delay as AwaitingRetry with its time, and sleeps in the flow's thread. A signal
ends that sleep when a stop is requested. A flow in another thread than the main one gets no
signals: there the job is STOPPED at once, and its flow ends after the delay.
"""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any, Self

from prefect.client.schemas.objects import State, TaskRun
from prefect.logging import get_run_logger
from prefect.states import Cancelled

from prefect_bt.attempts.job_context import JobContext
from prefect_bt.attempts.lifecycle import decide_job_retry
from prefect_bt.attempts.retry_policy import compute_retry_delay
from prefect_bt.errors import AttemptFailed, PrefectBtError, StoreError
from prefect_bt.flows.tasks.job_task import INTERRUPTS, set_task_state, start_thread
from prefect_bt.flows.tasks.reporting.report import publish_job_card, transition_job
from prefect_bt.flows.tasks.stop_requests import watch_for_stop
from prefect_bt.ledger.fencing_epochs import Superseded
from prefect_bt.ledger.states import JobState
from prefect_bt.text.control_characters import escape_controls

POLL_INTERVAL = 0.1
MIN_DELAY_SECONDS = 0.05
_SIGNAL = signal.SIGURG
"""Ignored by default, and used by hardly any program."""


class DelayInterrupted(Exception):
    """Raised in the main thread to end Prefect's sleep."""


class RetryDelay:
    """Decides for Prefect whether and when a job's next attempt begins."""

    def __init__(self, site: JobContext) -> None:
        self._site = site
        self.has_begun = False
        """Whether this process ran an attempt; else a crash has taken a part of the delay."""
        self.attempts: list[State[Any]] = []
        """States in which the attempts of this process ended."""
        self._decided_attempt: int | None = None
        self._ended = threading.Event()
        self._is_main = threading.current_thread() is threading.main_thread()
        self._old_handler: Any = None
        self._task_run: TaskRun | None = None
        self._superseded: Superseded | None = None

    def __enter__(self) -> Self:
        self._ended.set()
        if self._is_main:
            self._old_handler = signal.signal(_SIGNAL, self._handle_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> bool:
        """Suppress the interruption of a delay after a stop; pass Ctrl-C on."""
        _ = kind, trace
        in_delay = not self._ended.is_set()
        self._ended.set()
        if self._is_main:
            signal.signal(_SIGNAL, self._old_handler)
        stopped = isinstance(error, DelayInterrupted)
        if self._task_run and (stopped or (in_delay and isinstance(error, INTERRUPTS))):
            set_task_state(self._task_run, Cancelled(message="Stopped before the next attempt."))
        if not stopped:
            return False
        if self._superseded:
            raise self._superseded
        return True

    def end(self) -> None:
        """Stop watching: the next attempt begins."""
        self._ended.set()

    def check_elapsed(self) -> None:
        """Raise AttemptFailed again if the delay after the last failure is not over.

        For a process that recovers the job after a crash. An attempt that a user requested does not
        wait.
        """
        event = self._site.ledger.list_events(self._site.job_id)[-1]
        asked_for = event.state is JobState.CREATED and event.attempt is None
        outcomes = self._site.ledger.list_outcomes(self._site.job_id)
        if asked_for or self._decided_attempt is not None or not outcomes:
            return
        last = outcomes[-1]
        if last.failure is not None and self._seconds_left() > MIN_DELAY_SECONDS:
            raise AttemptFailed(last.message, outcome={"attempt": last.attempt})

    def decide(self, task: Any, task_run: TaskRun, state: State[Any]) -> bool:
        """Return whether Prefect retries the task `training`; set its delay if it does."""
        _ = state
        site = self._site
        try:
            site.ledger.get_epochs(site.job_id).check(site.epoch)
        except Superseded:  # another machine runs the job
            return False
        if not (decision := decide_job_retry(site)).retry:
            return False
        last = site.ledger.list_outcomes(site.job_id)[-1]
        left = self._seconds_left()
        self._decided_attempt = last.attempt
        # A failure after progress does not count, so the budgets can be exceeded.
        task.retries = max(task.retries, task_run.run_count + 1)
        task.retry_delay_seconds = round(left, 1) if left > MIN_DELAY_SECONDS else 0
        soon = f"in {left:.1f} s" if left > MIN_DELAY_SECONDS else "now"
        why = f"Attempt {last.attempt + 1} begins {soon}: {decision.reason}."
        self._announce(why, escape_controls(last.message), last.attempt)
        self._task_run = task_run
        if left > MIN_DELAY_SECONDS:
            self._ended = threading.Event()
            start_thread(self._watch_for_stop, self._ended)
        return True

    def _seconds_left(self) -> float:
        """Return the delay after the last outcome, less what a crash of the flow has taken.

        In full if this process decided on the same outcome before: no attempt began since, say for
        the store, and nothing may spin.
        """
        site = self._site
        outcomes = site.ledger.list_outcomes(site.job_id)
        delay = compute_retry_delay(outcomes, site.record.retries, job_id=site.job_id)
        if self.has_begun or self._decided_attempt == outcomes[-1].attempt:
            return delay
        return delay - max(0.0, time.time() - (outcomes[-1].ended_at or 0.0))

    def _announce(self, why: str, message: str, attempt: int) -> None:
        """Publish why and when the next attempt begins: job state, card, the run's log."""
        get_run_logger().warning("%s Attempt %d: %s", why, attempt, message)
        with suppress(StoreError):  # only for show: the attempt asks the store with more patience
            if self._site.ledger.get_state(self._site.job_id) is not JobState.CREATED:
                # With the attempt that failed: a person's wish to try again names none.
                transition_job(self._site, JobState.CREATED, message=why, attempt=attempt)
            publish_job_card(self._site)

    def _watch_for_stop(self, ended: threading.Event) -> None:
        with watch_for_stop(self._site) as stop_requested:
            try:
                while not ended.wait(POLL_INTERVAL):
                    if stop_requested():
                        break
                else:
                    return
                message = "Stopped before an attempt began."
                transition_job(self._site, JobState.STOPPED, message=message)
            except Superseded as error:
                self._superseded = error
            except PrefectBtError:
                return  # the attempt asks again
        if self._is_main and not ended.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        _ = number, frame
        if not self._ended.is_set():
            self._ended.set()
            raise DelayInterrupted
