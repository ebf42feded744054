"""How a run of `train` ends, in whichever process that happens."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

from prefect.client.schemas.objects import State
from prefect.states import Cancelled

from prefect_bt.attempts import JobSite, clear_nodes, judge_retry
from prefect_bt.control import conclude_abandoned, open_site
from prefect_bt.errors import AttemptFailed, PrefectBtError
from prefect_bt.flows.reporting import move_job, report_job
from prefect_bt.jobs import job_document, open_ledger
from prefect_bt.ownership import forget_job, hold_job
from prefect_bt.records import JobState


@contextmanager
def closing_job(site: JobSite) -> Generator[None]:
    """Own the job while it runs; at the end, write down how it ended and leave nothing behind."""
    with hold_job(site.settings.state_dir, site.job_id):
        try:
            with _ending(site):
                yield
        finally:
            if site.ledger.state(site.job_id).terminal:
                forget_job(site.settings.state_dir, site.job_id)


@contextmanager
def _ending(site: JobSite) -> Generator[None]:
    try:
        yield
    except Exception as error:
        _end(site, _last_outcome(site, JobState.FAILED), _failure_message(site, error))
        raise
    except BaseException:
        site.ledger.request_stop(site.job_id, by="an interrupt")
        _end(site, JobState.STOPPED, "Stopped by an interrupt.")
        raise
    _end(site, _last_outcome(site, JobState.STOPPED), "")


def final_state(site: JobSite) -> dict[str, Any] | State[Any]:
    """What the flow returns: the job's document, or Cancelled for a stopped job."""
    if site.ledger.state(site.job_id) is JobState.STOPPED:
        return Cancelled(message=f"Job {site.job_id} was stopped.")
    return job_document(site.ledger, site.record)


def finish_cancelled(flow: Any, flow_run: Any, state: State[Any]) -> None:
    """Prefect's hook, in the worker's process: the flow's was ended before it could finish."""
    _ = flow, state
    _finish(flow_run, JobState.STOPPED, "cancelled in Prefect")


def finish_crashed(flow: Any, flow_run: Any, state: State[Any]) -> None:
    """Prefect's hook after the flow's process died: nothing of the job goes on unowned."""
    _ = flow, state
    _finish(flow_run, JobState.FAILED, "the process that ran this job died")


def _url(parameters: dict[str, Any]) -> str | None:
    """The store that the run was given by value; None: the one of the settings."""
    store = parameters.get("store")
    return cast("dict[str, str]", store).get("url") if isinstance(store, dict) else None


def _finish(run: Any, state: JobState, reason: str) -> None:
    flow_run_id, parameters = str(run.id), dict(run.parameters or {})
    ledger = open_ledger(_url(parameters))
    job_id = ledger.job_of_run(flow_run_id)
    if job_id is None or ledger.state(job_id).terminal:
        return
    conclude_abandoned(open_site(ledger, ledger.job(job_id)), state, reason)


def _end(site: JobSite, state: JobState, message: str) -> None:
    if not site.ledger.state(site.job_id).terminal:
        move_job(site, state, message=message)
    clear_nodes(site)
    report_job(site)


def _last_outcome(site: JobSite, without: JobState) -> JobState:
    outcomes = site.ledger.outcomes(site.job_id)
    return outcomes[-1].state if outcomes else without


def _failure_message(site: JobSite, error: Exception) -> str:
    text = str(error) if isinstance(error, PrefectBtError) else f"{type(error).__name__}: {error}"
    if isinstance(error, AttemptFailed):
        return f"{text} No further attempt: {judge_retry(site).why}."
    return text
