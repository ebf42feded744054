"""The `reconcile` flow: on a schedule, jobs of this machine that were left behind go on.

`prefect-bt up` has a process that does the same. This is for a machine whose worker something else
keeps alive: a job begins its next attempt within a minute of the machine's start, without anybody
looking at it.
"""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from prefect_bt.errors import PrefectBtError
from prefect_bt.flows.tasks.job_flow import job_flow
from prefect_bt.flows.tasks.job_task import failed_state
from prefect_bt.flows.tasks.request import JobRequest, SubstrateChoice
from prefect_bt.jobs.asynchronous import asynchronous
from prefect_bt.jobs.recover import recover_jobs
from prefect_bt.settings import use_settings


@job_flow("reconcile")
def reconcile(*, substrate: SubstrateChoice = None) -> dict[str, str] | State[Any]:
    """Take up every job of this machine that no process runs any more.

    Args:
        substrate: Substrate whose state folder is searched for jobs, and whose settings they get;
            by default the usual ones.

    Returns:
        Job id -> what was done about it; empty when nothing was left behind.
    """
    try:
        settings = JobRequest(substrate=substrate).settings()
    except PrefectBtError as error:
        return failed_state(error)
    with use_settings(settings):
        done = dict(recover_jobs(settings.state_dir))
    for job_id, what in done.items():
        get_run_logger().warning("Job %s: %s.", job_id, what)
    return done


areconcile = asynchronous(reconcile)
