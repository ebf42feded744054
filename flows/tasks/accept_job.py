"""Tasks before the first attempt: accept the job, mirror its weights."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Final

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled

from prefect_bt.attempts.job_context import JobContext
from prefect_bt.errors import StateError
from prefect_bt.flows.tasks.finish_job import JobRun
from prefect_bt.flows.tasks.job_task import end_lost_tasks, job_task
from prefect_bt.flows.tasks.mirror import MirrorContext, mirror_all
from prefect_bt.flows.tasks.reporting.report import API_ERRORS, report_recovery, transition_job
from prefect_bt.flows.tasks.stop_requests import is_any_cancelled, watch_for_stop
from prefect_bt.flows.tasks.train_request import JobRequest
from prefect_bt.flows.tasks.wait_for_capacity import find_wait
from prefect_bt.host.job_lock import host_id
from prefect_bt.jobs.asynchronous import is_stop_requested
from prefect_bt.ledger.parent_calls import claim_call
from prefect_bt.ledger.states import JobState
from prefect_bt.planning.planner import plan_weights
from prefect_bt.prefect_api.client import run_url

OWNED_POLL_INTERVAL: Final = 5.0
"""Seconds between checks of a job that another run of the same parent runs."""


@job_task("accept-job")
def accept_job(request: JobRequest, job: JobRun) -> State[Any] | None:
    """Open the job of this run, or create it if there is none; `job` has it from then on.

    Repeating a run reopens its job unless the job completed. A job that was stopped before its
    first run started stays stopped, and so does one that was stopped in another run of the same
    parent. Raise StateError if another process owns the job.
    """
    run_id, is_first = str(flow_run.get_id()), flow_run.get_run_count() <= 1
    if not is_first:
        end_lost_tasks()
    opened = _open(request, run_id)
    if opened is None:
        return Cancelled(message="Stopped while another flow run of the same parent ran the job.")
    job.site, waited = opened
    site = job.site
    for note in site.notes:
        get_run_logger().info("note: %s", note)
    site.substrate.warm_up()
    state = site.ledger.get_state(site.job_id)
    scheduled = site.ledger.runs.find_job(run_id) == site.job_id
    host = host_id(site.settings.state_dir)
    site.ledger.runs.bind(run_id, site.job_id, url=run_url(run_id), host=host)
    if state is JobState.STOPPED and (waited or (scheduled and is_first)):
        return None
    if state is JobState.COMPLETED:
        return None
    job.waits = find_wait(site)
    if state in {JobState.PENDING, JobState.FAILED, JobState.DEPLOY_FAILED, JobState.STOPPED}:
        if state.terminal:
            site.ledger.controls.delete_stop_request(site.job_id)
        transition_job(site, JobState.CREATED, message="started by a Prefect flow run")
    site.resumed = state in {JobState.DEPLOYING, JobState.RUNNING}
    if site.resumed or (state is JobState.CREATED and not is_first):
        report_recovery(site)
    return None


def _open(request: JobRequest, run_id: str) -> tuple[JobContext, bool] | None:
    """Open the run's job; return it, and whether another run of the parent had to end first.

    A job that the parent requested before is opened again. Return None if the run is cancelled
    while another run has the job.
    """
    parents, ledger = _list_parent_runs(), request.ledger()
    known = request.job_id or ledger.runs.find_job(run_id)
    call = None
    if parents and not known:  # the call of the outermost parent that this run answers
        life = "-".join(str(parent.run_count) for parent in reversed(parents))
        call = claim_call(ledger, str(parents[-1].id), request.fingerprint, life=life)
    watched = [run_id, *(str(parent.id) for parent in parents)]
    waited = False
    while True:
        try:
            site = request.open(run_id, call)
        except StateError:
            if call is None or call.job_id is None:
                raise
            if is_stop_requested() or is_any_cancelled(watched):
                return None
            if not waited:
                get_run_logger().info("Job %s runs already; waiting for its end.", call.job_id)
            waited = True
            time.sleep(OWNED_POLL_INTERVAL)
        else:
            site.parent_run_ids = tuple(watched[1:])
            return site, waited


def _list_parent_runs() -> list[FlowRun]:
    """Return the flow runs above the present one, the nearest first; none for a run of its own.

    A parent that called `run_deployment` is one, too. Two requests for each parent.
    """
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    parents: list[FlowRun] = []
    if run is None or run.parent_task_run_id is None:
        return parents
    with suppress(*API_ERRORS), get_client(sync_client=True) as client:
        while run.parent_task_run_id is not None:
            task = client.read_task_run(run.parent_task_run_id)
            if task.flow_run_id is None:
                break
            run = client.read_flow_run(task.flow_run_id)
            parents.append(run)
    return parents


def rename_flow_run(site: JobContext) -> None:
    """Show the job in Prefect's lists: rename and tag a run that was not created for the job."""
    tag = f"prefect-bt:{site.job_id}"
    if tag in flow_run.get_tags():
        return
    with suppress(*API_ERRORS), get_client(sync_client=True) as client:
        client.update_flow_run(
            flow_run_id=flow_run.get_id(),  # pyright: ignore[reportArgumentType]
            name=f"{site.record.project_name}/{site.record.name} ({site.job_id})",
            tags={*flow_run.get_tags(), tag},
        )


def mirror_job_weights(site: JobContext) -> list[PrefectFuture[Any]] | None:
    """Mirror all weights of the job; return None if a stop was requested meanwhile."""
    plans = list({plan.key: plan for plan in plan_weights(site.project.job)}.values())
    if not plans:
        return []
    where = MirrorContext(site.settings, site.ledger.store, site.secret_sources, site)
    with watch_for_stop(site) as stopped:
        futures = mirror_all(where, plans, stop_requested=stopped)
        asked = stopped()
    if asked:
        transition_job(site, JobState.STOPPED, message="Stopped while its weights were mirrored.")
        return None
    return list(futures.values())
