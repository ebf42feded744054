"""How a run of `train` ends, in whichever process that happens."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Failed

from prefect_bt.attempts import (
    JobSite,
    clear_nodes,
    describe,
    ended_as,
    judge_retry,
    reap,
    release_holds,
    states_to,
)
from prefect_bt.control import (
    begin_crashed_again,
    conclude_abandoned,
    open_site,
    settle_site,
)
from prefect_bt.epochs import Superseded
from prefect_bt.errors import AttemptFailed, PrefectBtError, ServerError, StateError, StoreError
from prefect_bt.flows.reporting import move_job, report_job
from prefect_bt.flows.request import JobRequest
from prefect_bt.jobs import job_document
from prefect_bt.ownership import is_here, was_owned
from prefect_bt.parting import leave_to_another
from prefect_bt.records import JobState


@dataclass
class TakenJob:
    """What a run has taken up, as soon as it has; nothing of it may be left unended."""

    site: JobSite | None = None
    error: PrefectBtError | None = None
    """Error that made the job fail, or kept it from starting. It is not raised out of the flow,
    since Prefect would log it with a traceback."""


@contextmanager
def closing_job() -> Generator[TakenJob]:
    """At the end, write down how the job that was taken up ended, and leave nothing behind.

    It is owned until then. Where even that cannot be written, the lock's file stays behind, by
    which others see that the job is to be ended (control.settle).
    """
    job = TakenJob()
    try:
        with _leaving(job), _ending(job):
            yield job
    finally:
        if job.site is not None:
            _let_go(job.site)


@contextmanager
def _leaving(job: TakenJob) -> Generator[None]:
    """Leave the job to the other machine on `Superseded`, also while the end is being recorded."""
    try:
        yield
    except Superseded as error:
        if job.site is None:
            raise
        job.error = error
        leave_to_another(job.site, error.what)


@contextmanager
def _ending(job: TakenJob) -> Generator[None]:
    try:
        yield
    except Superseded:
        raise
    except PrefectBtError as error:
        if job.site is None:
            raise
        if _fail(job.site, error) is not JobState.STOPPED:
            job.error = error
    except Exception as error:
        if job.site is not None:
            _fail(job.site, error)
        raise
    except BaseException:
        if job.site is not None:
            _end_interrupted(job.site)
        raise
    else:
        if job.site is not None:
            _end(job.site, JobState.STOPPED, "")


def _end_interrupted(site: JobSite) -> None:
    """End an interrupted job as stopped, unless another machine has taken it over."""
    try:
        site.ledger.epochs(site.job_id).check(site.epoch)
        site.ledger.request_stop(site.job_id, by="an interrupt")
        _end(site, JobState.STOPPED, "Stopped by an interrupt.")
    except Superseded as error:
        leave_to_another(site, error.what)


def _let_go(site: JobSite) -> None:
    done = False
    with suppress(StoreError):
        over = site.ledger.state(site.job_id).terminal
        elsewhere = not is_here(site.settings.state_dir, site.ledger.host(site.job_id))
        done = over or elsewhere
        if over and not elsewhere and site.epoch:
            site.ledger.epochs(site.job_id).release_unused(site.epoch)
    if done:
        site.claim.drop()
    else:
        site.claim.release()


def final_state(job: TakenJob) -> dict[str, Any] | State[Any]:
    """What the flow returns: the job's document, Cancelled for a stopped job, Failed with why."""
    if job.error is not None:
        return Failed(message=str(job.error), data=job.error)
    site = job.site
    assert site is not None
    if site.ledger.state(site.job_id) is JobState.STOPPED:
        return Cancelled(message=stopped_message(site.job_id))
    return job_document(site.ledger, site.record)


def stopped_message(job_id: str) -> str:
    """What we say of a run whose job was stopped."""
    return f"Job {job_id} was stopped."


def finish_cancelled(flow: Any, flow_run: Any, state: State[Any]) -> None:
    """Prefect's hook, in the worker's process: the flow's was ended before it could finish."""
    _ = flow, state
    site = _site_of(flow_run)
    if site is None:
        return
    site.ledger.request_stop(site.job_id, by="Prefect's cancellation")
    if _had_not_begun(site):
        with suppress(StateError):  # another process is at it
            conclude_abandoned(site, JobState.STOPPED, "cancelled in Prefect before it began")
    else:
        settle_site(site)  # unless another process has taken the job up: that one sees the request


def finish_crashed(flow: Any, flow_run: Any, state: State[Any]) -> None:
    """Prefect's hook after the flow's process died: the job is taken up again.

    One that had not begun has nobody to take it up: its run is scheduled again.
    """
    _ = flow, state
    site = _site_of(flow_run)
    if site is None:
        return
    if _had_not_begun(site):
        with suppress(StateError, ServerError):  # whoever looks at the job tries again
            begin_crashed_again(site, str(flow_run.id))
    else:
        settle_site(site)


def _had_not_begun(site: JobSite) -> bool:
    waits = site.ledger.state(site.job_id) is JobState.PENDING
    return waits and not was_owned(site.settings.state_dir, site.job_id)


def _site_of(run: Any) -> JobSite | None:
    """The run's job, if it has one that is not over."""
    request = JobRequest.of_run(dict(run.parameters or {}))
    ledger = request.ledger()
    job_id = ledger.job_of_run(str(run.id))
    if job_id is None or ledger.state(job_id).terminal:
        return None
    return open_site(ledger, ledger.job(job_id), settings=request.settings())


def _fail(site: JobSite, error: Exception) -> JobState:
    return _end(site, JobState.FAILED, _failure_message(site, error))


def _end(site: JobSite, otherwise: JobState, message: str) -> JobState:
    """The job's last state, after putting away what an unforeseen error left."""
    if not site.ledger.state(site.job_id).terminal:
        reap(site, reason="its flow ended unforeseen")
    for state in states_to(site, ended_as(site, otherwise)):
        move_job(site, state, message=message)
    with suppress(StoreError):  # whoever finds a hold of a job that is over removes it
        release_holds(site)
    clear_nodes(site)
    report_job(site)
    return site.ledger.state(site.job_id)


def _failure_message(site: JobSite, error: Exception) -> str:
    text = describe(error)
    if isinstance(error, AttemptFailed):
        return f"{text} No further attempt: {judge_retry(site).why}."
    return text
