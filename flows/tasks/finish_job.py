"""Record the end of a run of `train`, in the process of the run or in another one."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Cancelled

from prefect_bt.attempts.job_context import JobContext
from prefect_bt.attempts.lifecycle import (
    decide_job_retry,
    describe_error,
    finalize_unfinished_attempts,
    missing_states,
    release_holds,
    remove_nodes,
    terminal_state,
)
from prefect_bt.errors import (
    AttemptFailed,
    PrefectBtError,
    ServerError,
    StateError,
    StoreError,
    SubstrateError,
)
from prefect_bt.flows.tasks.job_flow import interrupted_state
from prefect_bt.flows.tasks.job_task import failed_state
from prefect_bt.flows.tasks.reporting.report import publish_job_card, transition_job
from prefect_bt.flows.tasks.train_request import JobRequest
from prefect_bt.host.job_lock import has_lock_file, is_this_host
from prefect_bt.jobs.job_json import job_document
from prefect_bt.jobs.reconcile import (
    finalize_abandoned_job,
    reconcile_running_job,
    reschedule_or_fail,
)
from prefect_bt.jobs.stale_nodes import shut_down_local_nodes
from prefect_bt.jobs.starting.start_queued import start_next_jobs
from prefect_bt.jobs.stop import open_job_context
from prefect_bt.ledger.fencing_epochs import Superseded
from prefect_bt.ledger.states import JobState
from prefect_bt.substrates import CLUSTERS


@dataclass
class JobRun:
    """The job of a flow run, and how the run ended; `finalize_job` records the job's end."""

    site: JobContext | None = None
    error: PrefectBtError | None = None
    """Error that made the job fail, or kept it from starting. It is not raised out of the flow,
    since Prefect would log it with a traceback."""
    waits: str = ""
    """What the job waits for in the queue; "" for a job that may run."""
    interrupt: KeyboardInterrupt | None = None
    """Ctrl-C. Raised out of the flow, it would make the run Crashed."""
    ended: list[State[Any]] = field(default_factory=list[State[Any]])
    """States of the last tasks of the job, which its deployment follows in the graph."""


@contextmanager
def finalize_job(job: JobRun | None = None) -> Generator[JobRun]:
    """Record the end of the run's job, and remove its processes and files.

    The process owns the job until then. If the end cannot be recorded, the lock's file remains, by
    which other processes find the job (jobs.reconcile). On `Superseded` the job is left to the
    other machine.
    """
    job = job or JobRun()
    try:
        with _record_end(job):
            yield job
    except Superseded as error:  # also while the end is recorded
        if job.site is None:
            raise
        job.error = error
        shut_down_local_nodes(job.site, error.message)
    finally:
        if job.site is not None:
            _release_ownership(job.site)


@contextmanager
def _record_end(job: JobRun) -> Generator[None]:
    try:
        yield
    except Superseded:
        raise
    except PrefectBtError as error:
        if job.site is None or _record_failure(job.site, error) is not JobState.STOPPED:
            job.error = error
    except Exception as error:
        if job.site is not None:
            _record_failure(job.site, error)
        raise
    except KeyboardInterrupt as interrupt:
        job.interrupt = interrupt
        if job.site is not None:
            _finish_interrupted(job.site)
    except BaseException:
        if job.site is not None:
            _finish_interrupted(job.site)
        raise
    else:
        if job.site is not None:
            _finish(job.site, JobState.STOPPED, "")


def _finish_interrupted(site: JobContext) -> None:
    """End an interrupted job as stopped, unless another machine runs it now."""
    try:
        site.ledger.get_epochs(site.job_id).check(site.epoch)
        site.ledger.controls.request_stop(site.job_id, by="an interrupt")
        _finish(site, JobState.STOPPED, "Stopped by an interrupt.")
    except Superseded as error:
        shut_down_local_nodes(site, error.message)


def _release_ownership(site: JobContext) -> None:
    done = False
    with suppress(StoreError):
        over = site.ledger.get_state(site.job_id).terminal
        elsewhere = not is_this_host(site.settings.state_dir, site.ledger.get_host(site.job_id))
        done = over or elsewhere
        if over and not elsewhere and site.epoch:
            site.ledger.get_epochs(site.job_id).release_unused(site.epoch)
    if done:
        start_next_jobs(site.ledger, ended=site.job_id, settings=site.settings)
        site.lock.release_and_remove()
    else:
        site.lock.release()


def final_state(job: JobRun) -> dict[str, Any] | State[Any]:
    """Return the result of the flow: the job's document, or a Cancelled or Failed state."""
    if job.interrupt is not None:
        return interrupted_state(job.interrupt)
    if job.error is not None:
        return failed_state(job.error)
    site = job.site
    assert site is not None
    if site.ledger.get_state(site.job_id) is JobState.STOPPED:
        return Cancelled(message=f"Job {site.job_id} was stopped.")
    return job_document(site.ledger, site.record)


def handle_cancelled_run(flow: Any, flow_run: Any, state: State[Any]) -> None:
    """Stop the job of a run that Prefect cancelled: a hook, in the worker's process."""
    _ = flow, state
    site = _find_job_context(flow_run)
    if site is None:
        return
    site.ledger.controls.request_stop(site.job_id, by="Prefect's cancellation")
    if _is_waiting(site):
        with suppress(StateError):  # another process is at it
            finalize_abandoned_job(site, JobState.STOPPED, "cancelled in Prefect before it began")
    else:
        # Unless another process has taken the job up: that one sees the request.
        reconcile_running_job(site)


def handle_crashed_run(flow: Any, flow_run: Any, state: State[Any]) -> None:
    """Recover the job of a run whose process died; a hook in the worker's process.

    The run of a job that had not begun is scheduled again.
    """
    _ = flow, state
    site = _find_job_context(flow_run)
    if site is None:
        return
    if _is_waiting(site):
        with suppress(StateError, ServerError):  # whoever looks at the job tries again
            reschedule_or_fail(site, str(flow_run.id))
    else:
        reconcile_running_job(site)


def _is_waiting(site: JobContext) -> bool:
    waits = site.ledger.get_state(site.job_id) is JobState.PENDING
    return waits and not has_lock_file(site.settings.state_dir, site.job_id)


def _find_job_context(run: Any) -> JobContext | None:
    """Return the run's job if it has not ended; None for none."""
    request = JobRequest.from_run_parameters(dict(run.parameters or {}))
    ledger = request.ledger()
    job_id = ledger.runs.find_job(str(run.id))
    if job_id is None or ledger.get_state(job_id).terminal:
        return None
    return open_job_context(ledger, ledger.get_job(job_id), settings=request.settings())


def _record_failure(site: JobContext, error: Exception) -> JobState:
    message = describe_error(error)
    if isinstance(error, AttemptFailed):
        message = f"{message} No further attempt: {decide_job_retry(site).reason}."
    return _finish(site, JobState.FAILED, message)


def _finish(site: JobContext, default: JobState, message: str) -> JobState:
    """Return the job's last state after cleaning up after an unexpected error."""
    if not site.ledger.get_state(site.job_id).terminal:
        finalize_unfinished_attempts(site, reason="its flow ended unexpectedly")
    for state in missing_states(site, terminal_state(site, default)):
        transition_job(site, state, message=message)
    with suppress(StoreError):  # whoever finds a hold of a job that is over removes it
        release_holds(site)
    try:
        remove_nodes(site)
    except SubstrateError as error:  # the job is over nevertheless
        command = "worker" if site.record.substrate in CLUSTERS else "gc"
        get_run_logger().warning("%s `prefect-bt %s` removes what is left.", error, command)
    publish_job_card(site)
    return site.ledger.get_state(site.job_id)
