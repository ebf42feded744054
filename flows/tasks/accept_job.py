"""Tasks before the first attempt: accept the job, mirror its weights."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Failed

from prefect_bt.attempts.job_context import JobContext
from prefect_bt.credentials.secrets import resolve_secrets
from prefect_bt.errors import PrefectBtError, StateError, WeightsError
from prefect_bt.flows.tasks.finish_job import JobRun
from prefect_bt.flows.tasks.mirror import (
    MirrorContext,
    failed_state,
    mirror_all,
    mirror_with_progress,
    run_name,
)
from prefect_bt.flows.tasks.report import API_ERRORS, transition_job
from prefect_bt.flows.tasks.request import JobRequest
from prefect_bt.flows.tasks.stop_requests import watch_for_stop
from prefect_bt.host.job_lock import host_id
from prefect_bt.ledger.states import JobState
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.planning.planner import plan_weights
from prefect_bt.prefect_api.client import run_url


@task(name="accept-job", cache_policy=NO_CACHE, persist_result=False)
def accept_job(request: JobRequest, job: JobRun) -> JobContext | State[Any]:
    """Open the job of this run, or create it if there is none.

    Repeating a run reopens its job unless the job completed. A job that was stopped before its
    first run started stays stopped. Return a Failed state if another process owns the job.
    """
    run_id = str(flow_run.get_id())
    try:
        job.site = site = request.open(run_id)
    except StateError as error:
        job.error = error
        return Failed(message=str(error), data=error)  # raised, it would be a traceback
    for note in site.notes:
        get_run_logger().info("note: %s", note)
    site.substrate.warm_up()
    state = site.ledger.get_state(site.job_id)
    scheduled = site.ledger.find_job_of_run(run_id) == site.job_id
    host = host_id(site.settings.state_dir)
    site.ledger.bind_run(run_id, site.job_id, url=run_url(run_id), host=host)
    if state is JobState.STOPPED and scheduled and flow_run.get_run_count() <= 1:
        return site
    if state in {JobState.PENDING, JobState.FAILED, JobState.DEPLOY_FAILED, JobState.STOPPED}:
        if state.terminal:
            site.ledger.delete_stop_request(site.job_id)
        transition_job(site, JobState.CREATED, message="taken up by a Prefect run")
    site.resumed = state in {JobState.DEPLOYING, JobState.RUNNING}
    return site


def rename_flow_run(site: JobContext) -> None:
    """Show the job in Prefect's lists: the run is renamed and tagged (9 ms)."""
    with suppress(*API_ERRORS), get_client(sync_client=True) as client:
        client.update_flow_run(
            flow_run_id=flow_run.get_id(),  # pyright: ignore[reportArgumentType]
            name=f"{site.record.project_name}/{site.record.name} ({site.job_id})",
            tags={*flow_run.get_tags(), f"prefect-bt:{site.job_id}"},
        )


def mirror_job_weights(site: JobContext) -> bool:
    """Mirror all weights of the job; False when somebody asked for the job to stop meanwhile."""
    plans = list({plan.key: plan for plan in plan_weights(site.project.job)}.values())
    if not plans:
        return True

    def submit(plan: WeightsPlan, stop: threading.Event) -> PrefectFuture[Any]:
        future: Any = mirror_weights.submit(site, plan, stop)  # pyright: ignore[reportUnknownMemberType]
        return future

    with watch_for_stop(site) as stopped:
        mirror_all(plans, submit, stop_requested=stopped)
        asked = stopped()
    if asked:
        transition_job(site, JobState.STOPPED, message="Stopped while its weights were mirrored.")
        return False
    return True


@task(name="mirror-weights", task_run_name=run_name, cache_policy=NO_CACHE, persist_result=False)
def mirror_weights(
    site: JobContext, source: WeightsPlan, stop: threading.Event
) -> str | State[Any]:
    """Mirror one source before any node is launched. Return the path of its local copy.

    The first mirror pins the revision. All attempts of the job use that revision.
    """
    pin = site.ledger.read_pinned_weights(site.job_id).get(source.key)
    wanted = [source.secret] if source.secret else []
    where = MirrorContext(site.settings, site.ledger.store, site.job_id)
    try:
        values = resolve_secrets(wanted, site.secret_sources, team=site.team)
        secret = next(iter(values.values()), None)
        mirrored = mirror_with_progress(
            where, source, secret=secret, stop=stop, revision=pin.revision if pin else ""
        )
    except PrefectBtError as error:
        if stop.is_set() and isinstance(error, WeightsError):
            return Cancelled(message="Stopped; what is here already is kept.")
        return failed_state(error)
    site.ledger.pin_weights(
        site.job_id, source.key, mirrored.revision, files=mirrored.files, size=mirrored.bytes
    )
    return str(mirrored.folder)
