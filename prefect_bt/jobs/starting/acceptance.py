"""Accept a job: start it, write it to the queue, or schedule the run of a deployment.

The order of writes is that of docs/decisions/024: after each of them the process may die or be
stopped for long, and another one goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from prefect_bt.errors import AcceptedJobError, PrefectBtError, StateError, StoreError
from prefect_bt.host.job_lock import JobLock, host_id
from prefect_bt.jobs.job_json import job_document, store_ended_job
from prefect_bt.jobs.starting.cluster_reader import find_cluster
from prefect_bt.jobs.starting.launcher import JobLauncher, default_deployment
from prefect_bt.jobs.starting.queued_runs import show_queued_job
from prefect_bt.jobs.starting.start_queued import (
    admit_new_job,
    build_queued_job,
    start_if_room_came,
)
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.queue.keepers import has_run_since
from prefect_bt.queue.overview import find_wait
from prefect_bt.queue.waiting_jobs import add_waiting_job
from prefect_bt.settings import Settings


def start_job(  # noqa: PLR0913 (a job, and how it starts)
    ledger: Ledger,
    record: JobRecord,
    launcher: JobLauncher | None,
    deployment: str | None = None,
    on_created: Callable[[JobRecord], object] = lambda _: None,
    *,
    epoch: int = 0,
) -> None:
    """Call `on_created`, then start the job, or write it to the queue.

    `launcher` owns the job; without one a worker of the deployment runs it. `epoch`: of a retry,
    whose request is recorded; 0: of a new job. On an error, record the job as FAILED and raise.
    """
    try:
        on_created(record)
        waits = ""
        if launcher:
            waits = _start_or_queue(ledger, record, launcher, epoch=epoch)
        else:
            _submit_to_deployment(ledger, record.id, deployment or default_deployment())
    except BaseException as error:
        note_failed_start(ledger, record.id, error, owned=launcher is not None)
        raise
    if launcher and waits:
        launcher.close()
        start_if_room_came(ledger, record)
        show_queued_job(ledger, record, waits)


def _start_or_queue(ledger: Ledger, record: JobRecord, launcher: JobLauncher, *, epoch: int) -> str:
    """Return what the job waits for, "" if it starts.

    If this process was stopped for long, another one has accepted the job meanwhile.
    """
    waits, after = admit_new_job(ledger, record), None if epoch else -1
    with suppress(StateError):
        if waits:
            message = f"waits for {waits}" if epoch else "accepted"
            enter_queue(ledger, record, message, epoch=epoch, after=after)
            return waits
        if not epoch:
            accept_here(ledger, record, host_id(launcher.state_dir))
        launcher.hand_over(ledger, record)
    return ""


def read_accepted_document(ledger: Ledger, record: JobRecord) -> dict[str, Any]:
    """Return the job's document with its `machine`, or with what it waits for in the queue.

    Raise AcceptedJobError if the store does not answer.
    """
    try:
        return _read_document(ledger, record)
    except StoreError as error:
        raise AcceptedJobError(
            f"Job {record.id} was accepted, but its state cannot be read: {error.message}",
            url=ledger.store.url,
            next_step=f"Do not repeat the request. See: prefect-bt view --job-id {record.id}",
        ) from error


def _read_document(ledger: Ledger, record: JobRecord) -> dict[str, Any]:
    document = job_document(ledger, record)
    if document["current_status"] == JobState.PENDING.value:
        wait = find_wait(ledger, record.id)
        if "place" not in wait:  # another machine has started it, unless a worker is to do it
            document = job_document(ledger, record)
        if document["current_status"] == JobState.PENDING.value:
            return {**document, **wait}
    cluster = find_cluster(Settings()).find_machine(record.cluster)
    name = cluster.name if cluster else ledger.get_host(record.id).partition(":")[0]
    return {**document, "machine": name}


def accept_here(ledger: Ledger, record: JobRecord, host: str) -> int:
    """Claim a new job that this process owns, and record its start; return the epoch.

    StateError if another process accepted the job first.
    """
    epoch = ledger.claim(record.id, host)
    ledger.append_event(record.id, JobState.CREATED, message="accepted", epoch=epoch, after=-1)
    return epoch


def _submit_to_deployment(ledger: Ledger, job_id: str, deployment: str) -> None:
    """Schedule a run of a new job, or of a retry whose request is recorded."""
    number, last = ledger.find_last_event(job_id)
    if last is None:
        ledger.append_event(
            job_id, JobState.PENDING, message="accepted", after=-1, deployment=deployment
        )
        number = 0
    _schedule_run(ledger, job_id, deployment, event=number)


def _schedule_run(ledger: Ledger, job_id: str, deployment: str, *, event: int) -> None:
    """Create the run that starts the job after this event, or find it. ServerError."""
    from prefect_bt.prefect_api.client import run_deployment

    key = f"prefect-bt:{job_id}:{event}"
    run = run_deployment(deployment, job_id=job_id, store=ledger.store.url, idempotency_key=key)
    ledger.runs.bind(run.flow_run_id, job_id, url=run.url)


def note_failed_start(ledger: Ledger, job_id: str, error: BaseException, *, owned: bool) -> None:
    """Record the failure unless a worker claimed the job meanwhile. `owned`: by this process.

    If the store does not answer, the job is put back into the queue later (lost_jobs.py).
    """
    state_dir = Settings().state_dir.absolute()
    claim = JobLock(state_dir)
    with suppress(PrefectBtError):
        if not owned:
            claim.acquire(job_id)
        if not ledger.get_state(job_id).terminal:
            epoch = ledger.claim(job_id, host_id(state_dir))
            why = f"It could not be started: {error}"
            ledger.append_event(job_id, JobState.FAILED, message=why, epoch=epoch)
            store_ended_job(ledger, job_id)
    claim.release_and_remove()


def enter_queue(  # noqa: PLR0913 (a job, and how its wait is recorded)
    ledger: Ledger,
    record: JobRecord,
    message: str,
    *,
    epoch: int = 0,
    after: int | None = None,
    settings: Settings | None = None,
) -> None:
    """Record that the job waits, write it to the queue, and release it to any machine.

    `epoch`: that of this process; 0: no process acts for the job. `after`: as of append_event.
    """
    ledger.append_event(record.id, JobState.PENDING, message=message, epoch=epoch, after=after)
    add_waiting_job(ledger, build_queued_job(ledger, record, settings))
    ledger.get_epochs(record.id).release(epoch)


def put_back(ledger: Ledger, record: JobRecord) -> bool:
    """Write a job that waits to the queue, or to Prefect for a deployment's worker. Idempotent.

    Return False if it waits no more. ServerError if Prefect does not answer.
    """
    number, last = ledger.find_last_event(record.id)
    if last is None:
        with suppress(StateError):  # its push goes on
            ledger.append_event(record.id, JobState.PENDING, message="accepted", after=-1)
        number, last = ledger.find_last_event(record.id)
    if last and last.deployment:
        if has_run_since(ledger, record, number):
            return False
        _schedule_run(ledger, record.id, last.deployment, event=number)
        return True
    return add_waiting_job(ledger, build_queued_job(ledger, record))
