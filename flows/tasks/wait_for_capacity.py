"""Wait in the queue: in the run's process, or suspended, without a process.

A run that a worker or a supervisor started is suspended: its state is AwaitingConcurrencySlot, its
process ends, and the machine that has room starts it again. A run in a script, a notebook or a
parent flow waits in its own process, which is there anyway.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import Pause
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from prefect_bt.attempts.job_context import JobContext
from prefect_bt.attempts.lifecycle import remove_nodes
from prefect_bt.flows.tasks.reporting.report import API_ERRORS, transition_job
from prefect_bt.flows.tasks.stop_requests import watch_for_stop
from prefect_bt.host.job_lock import host_id
from prefect_bt.jobs.starting.acceptance import enter_queue
from prefect_bt.jobs.starting.cluster_reader import find_cluster
from prefect_bt.jobs.starting.queued_runs import queued_state
from prefect_bt.jobs.starting.start_queued import (
    admit_job,
    build_queued_job,
    is_queued_here,
    start_if_room_came,
    start_next_jobs,
)
from prefect_bt.ledger.states import JobState
from prefect_bt.queue.records import KUBERNETES, QueuedJob
from prefect_bt.queue.waiting_jobs import add_waiting_job
from prefect_bt.settings import Settings

if TYPE_CHECKING:
    from prefect_bt.flows.tasks.finish_job import JobRun

POLL_INTERVAL: Final = 1.0


def find_wait(site: JobContext) -> str:
    """Begin a lease of the job and return "", or return what the job waits for."""
    if not is_queued_here(site.record, site.settings):
        return ""
    job = build_queued_job(site.ledger, site.record, site.settings)
    waits = site.record.serving is None
    return admit_job(site.ledger, job, waits=waits, settings=site.settings)


def wait_in_queue(run: JobRun) -> bool:
    """Return True when the job may run here, False when it was stopped; or suspend the run.

    A suspended run raises Pause, which ends its process.
    """
    site = run.site
    assert site is not None
    get_run_logger().info("Job %s waits in the queue for %s.", site.job_id, run.waits)
    remove_nodes(site)
    site.ledger.controls.delete_preemption(site.job_id)
    if _may_suspend(site):
        _suspend(run, site)
    transition_job(site, JobState.PENDING, message=f"waits for {run.waits}")
    host = host_id(site.settings.state_dir).partition(":")[2]
    job = replace(build_queued_job(site.ledger, site.record, site.settings), host=host)
    add_waiting_job(site.ledger, job)
    # In the place that a preempted job gave up.
    start_next_jobs(site.ledger, ended=site.job_id, settings=site.settings)
    return _poll(site, job)


def _poll(site: JobContext, job: QueuedJob) -> bool:
    """Return True when the job has a lease, False when it was stopped."""
    with watch_for_stop(site) as stop_requested:
        while not stop_requested():
            if not admit_job(site.ledger, job, is_new=False, settings=site.settings):
                transition_job(
                    site, JobState.CREATED, message="starts: this machine has room for it"
                )
                return True
            time.sleep(POLL_INTERVAL)
    transition_job(site, JobState.STOPPED, message="Stopped while it waited in the queue.")
    return False


def _may_suspend(site: JobContext) -> bool:
    """Return whether another process can run the flow later."""
    in_cluster = site.record.substrate == KUBERNETES
    if in_cluster and find_cluster(Settings()).id != find_cluster(site.settings).id:
        return False  # only this process has the settings of the job's cluster
    context = FlowRunContext.get()
    deployed = context and context.flow_run and context.flow_run.deployment_id
    return bool(site.lock.is_inherited or deployed) and not site.parent_run_ids


def _suspend(run: JobRun, site: JobContext) -> NoReturn:
    """Return the job to the queue, and end this process."""
    ledger, message = site.ledger, f"waits for {run.waits}"
    state: State[Any] = State.model_validate(queued_state(run.waits, deployed=True))
    # First, because the machine that starts the job sets the state of the run, too.
    with suppress(*API_ERRORS), get_client(sync_client=True) as client:
        client.set_flow_run_state(UUID(str(flow_run.get_id())), state, force=True)
    enter_queue(ledger, site.record, message, epoch=site.epoch, settings=site.settings)
    # In the place that a preempted job gave up.
    start_next_jobs(ledger, ended=site.job_id, settings=site.settings)
    run.site = None  # the job is not this process's any more
    site.lock.release_and_remove()
    start_if_room_came(ledger, site.record, site.settings)
    raise Pause(state=state)
