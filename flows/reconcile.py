"""Recover abandoned jobs of this machine on a schedule: flow `reconcile`.

The watchdog of `prefect-bt up` does the same. This flow is for a machine whose worker is kept
running by other means: an abandoned job starts its next attempt within a minute of the machine's
start.
"""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from prefect_bt.errors import PrefectBtError
from prefect_bt.flows.tasks.job_flow import job_flow
from prefect_bt.flows.tasks.job_task import failed_state
from prefect_bt.flows.tasks.train_request import JobRequest, SubstrateChoice
from prefect_bt.jobs.asynchronous import asynchronous
from prefect_bt.jobs.reconcile import recover_jobs
from prefect_bt.jobs.stale_nodes import UnfinishedRemovals
from prefect_bt.jobs.starting.lost_jobs import LostJobs
from prefect_bt.jobs.starting.start_queued import start_waiting_jobs
from prefect_bt.ledger.creation import check_creates_once
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.settings import use_settings


@job_flow("reconcile")
def reconcile(*, substrate: SubstrateChoice = None) -> dict[str, str] | State[Any]:
    """Recover every job of this machine that no process runs any more.

    Also remove the nodes of ended jobs of a cluster that did not answer at their end.

    Args:
        substrate: Substrate whose state folder is searched and whose settings the jobs get; by
            default PREFECT_BT_SUBSTRATE.

    Returns:
        What was done with each of these jobs, by job id; empty if there is none.
    """
    try:
        settings = JobRequest(substrate=substrate).settings()
        with use_settings(settings):
            done, ledger = dict(recover_jobs(settings.state_dir)), open_ledger()
            check_creates_once(ledger.store, settings.state_dir)
            for sentence in LostJobs(ledger, settings.state_dir).put_back():
                get_run_logger().warning("%s.", sentence)
            done |= dict.fromkeys(start_waiting_jobs(ledger), "started")
            done |= dict(UnfinishedRemovals(ledger, settings).finish())
    except PrefectBtError as error:
        return failed_state(error)
    for job_id, what in done.items():
        get_run_logger().warning("Job %s: %s.", job_id, what)
    return done


areconcile = asynchronous(reconcile)
