"""A job from its acceptance to its end: what the flows `train` and `serve` have in common."""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State

from prefect_bt.attempts import JobSite
from prefect_bt.flows.attempt import attempt_until_done
from prefect_bt.flows.ending import closing_job, final_state
from prefect_bt.flows.request import JobRequest
from prefect_bt.flows.steps import accept_job, mirror_sources, name_run


def run_whole(request: JobRequest) -> dict[str, Any] | State[Any]:
    """In the main thread of a flow run, where cancellation arrives. Returns what the flow does."""
    with closing_job() as job:
        accept_job(request, job)
        if job.site is not None:  # else another process runs it
            _run_to_completion(job.site)
    return final_state(job)


def _run_to_completion(site: JobSite) -> None:
    name_run(site)
    # A job that is taken up has its weights: nothing comes between its gang and who watches it.
    over = site.ledger.state(site.job_id).terminal
    if not over and (site.resumed or mirror_sources(site)):
        attempt_until_done(site)
