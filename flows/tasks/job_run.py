"""A job from its acceptance to its end: what the flows `train` and `serve` have in common."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, Final

from prefect.client.schemas.objects import State
from prefect.states import Cancelled
from rich.console import Console

from prefect_bt.attempts.job_context import JobContext
from prefect_bt.attempts.lifecycle import was_preempted
from prefect_bt.errors import StoreError
from prefect_bt.flows.tasks.accept_job import accept_job, mirror_job_weights, rename_flow_run
from prefect_bt.flows.tasks.attempt import run_attempts, should_continue
from prefect_bt.flows.tasks.finish_job import JobRun, final_state, finalize_job
from prefect_bt.flows.tasks.job_task import call_task, start_thread
from prefect_bt.flows.tasks.train_request import JobRequest
from prefect_bt.flows.tasks.wait_for_capacity import wait_in_queue
from prefect_bt.ledger.requests import OWNER, READER
from prefect_bt.substrates import CLUSTERS

MARK_INTERVAL: Final = 20.0
"""Seconds between two marks of a flow, shorter than those for which a reader's mark counts."""


def run_job_to_completion(
    request: JobRequest, run: JobRun | None = None
) -> dict[str, Any] | State[Any]:
    """Run the job in the main thread of a flow run, where cancellation arrives.

    Return what the flow returns; `run` has the job's tasks then.
    """
    with finalize_job(run) as job:
        accepted = call_task(accept_job, request, job)
        if job.site is None:
            return Cancelled(message=accepted.message)
        with _mark_ownership(job.site):
            job.ended = _mirror_and_run(job)
    return final_state(job)


@contextmanager
def _mark_ownership(site: JobContext) -> Generator[None]:
    """Mark in the store, while the block runs, that a flow has the job; of pods, also read logs."""
    ended = threading.Event()
    names = (OWNER, READER) if site.record.substrate in CLUSTERS else (OWNER,)

    def mark() -> None:
        requests = site.ledger.controls.open_requests(site.job_id)
        while True:
            for name in names:
                with suppress(StoreError):
                    requests.mark(name)
            if ended.wait(MARK_INTERVAL):
                return

    thread = start_thread(mark)
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=1)


def _mirror_and_run(run: JobRun) -> list[State[Any]]:
    site = run.site
    assert site is not None
    rename_flow_run(site)
    if site.ledger.get_state(site.job_id).terminal:
        return []
    if run.waits and site.resumed:  # every process of the job died, and its place is taken
        if not should_continue(site):
            return []
        site.resumed = False
    while True:
        if run.waits and not wait_in_queue(run):
            return []
        # A job that is taken up has its weights: nothing comes between its gang and who watches it.
        mirrored = [] if site.resumed else mirror_job_weights(site)
        if mirrored is None:
            return []
        ended = run_attempts(site, mirrored)
        if not was_preempted(site):
            return ended
        run.waits = "the place that it gave up for another job"
        site.resumed = False


def _silence_console(self: Console) -> None:
    self.quiet = True
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)


# A worker reads the output of its flows through pipes. When the worker is killed, Rich, which
# Prefect prints with, would end the process at the next line, and so every job of the worker.
# Set on import, before the run begins: Prefect's own first lines count, too.
Console.on_broken_pipe = _silence_console
