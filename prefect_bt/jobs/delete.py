"""Delete a job or a project permanently.

    marker -> holds? -> index says deleted -> job.json -> manifests -> the rest -> marker

Once the index says deleted, no reader finds the job, and its id is never used again. A deletion
that was killed at any point continues when it is repeated. An error before that changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final

from prefect_bt.attempts.job_context import open_job_context
from prefect_bt.attempts.lifecycle import remove_nodes
from prefect_bt.checkpoints.retention.holds import JOB, Hold, list_active_holds
from prefect_bt.errors import NotFoundError, StateError, SubstrateError
from prefect_bt.filesystem.trees import remove_tree
from prefect_bt.host.job_lock import JobLock, host_id
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.jobs.reconcile import reconcile_job
from prefect_bt.ledger.ended_documents import delete_ended_document
from prefect_bt.ledger.fencing_epochs import DELETE, Superseded
from prefect_bt.ledger.job_objects import find_object
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.parent_calls import delete_calls
from prefect_bt.ledger.records import JobRecord
from prefect_bt.object_keys import (
    deleting_key,
    job_index_key,
    job_objects_prefix,
    job_prefix,
    manifests_prefix,
    project_prefix,
    project_record_key,
    quote_name,
    run_index_key,
)
from prefect_bt.settings import Settings

_EXIT_TIMEOUT: Final = 10.0
"""Seconds that the processes of a job that has ended may take to exit."""
_CACHES = ("bases", "projects", "huggingface", "environments")


def delete_job(ledger: Ledger, job_id: str, *, settings: Settings) -> dict[str, object]:
    """Delete the job, its checkpoints, its logs and its files on this machine.

    Return the ids of the job and of its project. Raises StateError if the job is not over or if
    another job or a deployment needs one of its checkpoints, and NotFoundError if there is no such
    job or nothing is left of it.
    """
    project_id = get_project_id(ledger, job_id)
    _delete(ledger, project_id, job_id, settings)
    return {"id": job_id, "deleted": True, "training_project_id": project_id}


def delete_project(ledger: Ledger, name_or_id: str, *, settings: Settings) -> dict[str, object]:
    """Delete every job of the project, then its records and its caches on this machine.

    Raises StateError before anything is deleted if one of its jobs cannot be deleted. A job that
    is pushed meanwhile is deleted too, or keeps the project.
    """
    project = ledger.projects.get(name_or_id)
    deleted = set[str]()
    while jobs := set(list_project_jobs(ledger, project.id)) - deleted:
        for job_id in jobs:
            check_deletable(ledger, project.id, job_id)
        for job_id in sorted(jobs):
            _delete(ledger, project.id, job_id, settings)
        deleted |= jobs
    for cache in _CACHES:
        remove_tree(settings.state_dir / "cache" / cache / quote_name(project.id))
    last, jobs_folder = project_record_key(project.id), f"{project_prefix(project.id)}/jobs/"
    for info in ledger.store.list(project_prefix(project.id)):  # not what is pushed just now
        if info.key != last and not info.key.startswith(jobs_folder):
            ledger.store.delete(info.key)
    # A project in the index has a record, so its entry is removed first.
    ledger.projects.remove_from_index(project)
    ledger.store.delete(last)
    return {"id": project.id, "deleted": True}


def list_project_jobs(ledger: Ledger, project_id: str) -> list[str]:
    """Return the ids of its jobs, also of jobs whose deletion was killed."""
    prefix = f"{project_prefix(project_id)}/jobs"
    keys = (info.key for info in ledger.store.list(prefix))
    return sorted({key.removeprefix(f"{prefix}/").partition("/")[0] for key in keys})


def get_project_id(ledger: Ledger, job_id: str) -> str:
    """Return the job's project, also if a deletion was killed; NotFoundError if nothing is left."""
    try:
        return ledger.get_job(job_id).project_id
    except NotFoundError:
        if project_id := _find_partly_deleted(ledger, job_id):
            return project_id
        raise


def check_deletable(ledger: Ledger, project_id: str, job_id: str) -> JobRecord | None:
    """Return the job, None if its record is deleted. StateError if it cannot be deleted now."""
    try:
        record = ledger.get_job(job_id)
    except NotFoundError:
        return None
    reconcile_job(ledger, job_id)
    state = ledger.get_state(job_id)
    if not state.terminal:
        raise StateError(
            f"Job {job_id} has not ended ({state.value}), so it cannot be deleted.",
            state=state.value,
            next_step=f"Stop it first: prefect-bt stop --job-id {job_id}",
        )
    holds = list_reconciled_holds(ledger, project_id, job_id)
    holders = dict.fromkeys(one.label for one in holds if one.holder != job_id)
    if holders:
        raise StateError(
            f"Checkpoints of job {job_id} are needed by {', '.join(holders)}, so it cannot be "
            "deleted.",
            state=state.value,
            next_step="Wait until that has ended, or stop it first.",
        )
    return record


def list_reconciled_holds(ledger: Ledger, project_id: str, job_id: str) -> list[Hold]:
    """Return the active holds on checkpoints of the job, after their jobs were reconciled."""
    for hold in list_active_holds(ledger, project_id, job_id):
        if hold.kind == JOB:
            with suppress(SubstrateError, StateError):
                reconcile_job(ledger, hold.holder)
    return list_active_holds(ledger, project_id, job_id)


@contextmanager
def claim_finished_job(
    ledger: Ledger, job_id: str, *, settings: Settings, purpose: str
) -> Generator[Callable[[], None]]:
    """Own the job, on this machine and in the store, so that no process retries it meanwhile.

    Yield a function to call before each deletion; it raises Superseded once another machine has the
    job. Raise StateError if the job was retried. `purpose`: fencing_epochs.PRUNE, DELETE
    or COMMIT.
    """
    claim, epoch = JobLock(settings.state_dir, timeout=_EXIT_TIMEOUT), 0
    fence: Callable[[], None] = lambda: None  # noqa: E731 (of a job whose claims are deleted)
    claim.acquire(job_id)
    try:
        claim.write_store_url(ledger.store.url)
        with suppress(NotFoundError):  # its deletion was killed
            ledger.get_job(job_id)
            _check_finished(ledger, job_id)  # a running gang keeps its epoch
            with claim.keep_on_error():
                epoch = ledger.claim(job_id, host_id(settings.state_dir), purpose=purpose)
            _check_finished(ledger, job_id)
            delete_ended_document(ledger.store, job_id)
            fence = ledger.get_epochs(job_id).fence(epoch)
        yield fence
    finally:
        with suppress(NotFoundError):  # deleted
            ledger.get_job(job_id)
            ledger.get_epochs(job_id).release(epoch)
        claim.release_and_remove()


def _check_finished(ledger: Ledger, job_id: str) -> None:
    state = ledger.get_state(job_id)
    if not state.terminal:
        raise StateError(
            f"Job {job_id} runs again ({state.value}).",
            state=state.value,
            next_step="Try again when it has ended.",
        )


def _find_partly_deleted(ledger: Ledger, job_id: str) -> str:
    """Return the project of a job whose deletion was killed; else ""."""
    if not (job_id.isascii() and job_id.isalnum()):
        return ""
    pointer = find_object(ledger.store, job_index_key(job_id), dict[str, Any])
    if pointer is None:
        return ""
    project_id = str(pointer["project_id"])
    left = ledger.store.list(job_prefix(project_id, job_id))
    return project_id if "deleted" in pointer and any(True for _ in left) else ""


def _delete(ledger: Ledger, project_id: str, job_id: str, settings: Settings) -> None:
    check_deletable(ledger, project_id, job_id)
    with claim_finished_job(ledger, job_id, settings=settings, purpose=DELETE) as fence:
        record = _write_tombstone(ledger, project_id, job_id)
        if record is not None:
            with suppress(SubstrateError):
                remove_nodes(open_job_context(ledger, record, settings=settings))
        try:
            fence()
        except Superseded:
            ledger.store.delete(deleting_key(project_id, job_id))
            raise
        _delete_records(ledger, project_id, job_id)
        _delete_files(JobFolder(settings.state_dir, job_id))


def _write_tombstone(ledger: Ledger, project_id: str, job_id: str) -> JobRecord | None:
    """Write the marker, which prevents new holds, then check again. Return the job's record."""
    key = deleting_key(project_id, job_id)
    ledger.store.put(key, json.dumps({"at": ledger.now()}).encode())
    try:
        return check_deletable(ledger, project_id, job_id)
    except StateError:
        ledger.store.delete(key)
        raise


def _delete_records(ledger: Ledger, project_id: str, job_id: str) -> None:
    store, prefix = ledger.store, job_prefix(project_id, job_id)
    deleted = {"project_id": project_id, "deleted": True}
    store.put(job_index_key(job_id), json.dumps(deleted).encode())
    store.delete(f"{prefix}/job.json")
    for info in store.list(manifests_prefix(project_id, job_id)):
        store.delete(info.key)
    for upload in store.list_unfinished_uploads(job_objects_prefix(project_id, job_id)):
        store.abort_upload(upload)
    delete_calls(store, project_id, job_id)
    marker = deleting_key(project_id, job_id)
    for info in store.list(prefix):
        if info.key.startswith(f"{prefix}/runs/"):
            run = info.key.rpartition("/")[2].removesuffix(".json")
            store.delete(run_index_key(run))
        if info.key != marker:
            store.delete(info.key)
    delete_ended_document(store, job_id)  # a reader may have stored it meanwhile
    store.delete(marker)


def _delete_files(folder: JobFolder) -> None:
    """Delete the files of the job's nodes, except the lock, which this process holds."""
    with suppress(OSError):
        for path in folder.path.iterdir():
            if path != folder.owner_lock:
                remove_tree(path)
