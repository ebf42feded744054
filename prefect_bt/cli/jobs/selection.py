"""Select the jobs of a command by its filters."""

from __future__ import annotations

from contextlib import suppress

from prefect_bt.cli.ui.options import JobFilter
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.errors import NotFoundError, PrefectBtError
from prefect_bt.job_index.entries import Document, JobEntry, JobIndex
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, ProjectRecord
from prefect_bt.ledger.states import JobState


def select_project(ledger: Ledger, which: JobFilter, terminal: Terminal) -> ProjectRecord | None:
    """Return the project of the filter, or None without one; NotFoundError lists the known ones."""
    if which.project and which.project_id:
        terminal.warn("Both --project and --project-id were given; --project is used.")
    wanted = which.selected_project
    return ledger.projects.get(wanted) if wanted else None


def select_jobs(ledger: Ledger, which: JobFilter, terminal: Terminal) -> list[JobRecord]:
    """Return the jobs that match the filter, oldest first."""
    project = select_project(ledger, which, terminal)
    if which.job_id is None:
        return ledger.list_jobs(project_id=project.id if project else None)
    record = ledger.get_job(which.job_id)
    if project and record.project_id != project.id:
        raise NotFoundError(
            "job",
            which.job_id,
            next_step=f"It belongs to project {record.project_name!r}, not {project.name!r}.",
        )
    return [record]


def select_job(ledger: Ledger, which: JobFilter, terminal: Terminal) -> JobRecord:
    """Return the job with the given ID, or the newest one that matches."""
    if which.job_id is not None:
        return select_jobs(ledger, which, terminal)[0]
    found = list_entries(open_job_index(ledger, terminal), which, terminal)
    for entry in reversed(found):
        with suppress(NotFoundError):  # deleted meanwhile
            record = ledger.get_job(entry.id)
            if len(found) > 1:
                terminal.warn(f"{len(found)} jobs match; using the newest: {entry.id}.")
            return record
    raise no_jobs_error(ledger, which)


def open_job_index(ledger: Ledger, terminal: Terminal) -> JobIndex:
    """Return the jobs of the store. The state of a job is reconciled before its records are read.

    Warnings are printed on the terminal.
    """

    def read(job_id: str) -> Document:
        from prefect_bt.jobs.job_json import job_document  # no list of ended jobs needs it

        get_reconciled_state(ledger, job_id, terminal)
        return job_document(ledger, ledger.get_job(job_id))

    return JobIndex(ledger, read)


def list_entries(jobs: JobIndex, which: JobFilter, terminal: Terminal) -> list[JobEntry]:
    """Return the entries of the filter's project, oldest first, without reading their records."""
    project = select_project(jobs.ledger, which, terminal)
    return jobs.list_entries(project.id if project else None)


def list_unfinished_jobs(ledger: Ledger, which: JobFilter, terminal: Terminal) -> list[JobRecord]:
    """Return the queued and active jobs of the filter's project, oldest first."""
    jobs = open_job_index(ledger, terminal)
    entries = list_entries(jobs, which, terminal)
    found = jobs.list_unfinished(
        entries, lambda job_id: get_reconciled_state(ledger, job_id, terminal)
    )
    return [ledger.get_job(entry.id) for entry in found]


def no_jobs_error(ledger: Ledger, which: JobFilter) -> PrefectBtError:
    where = f"project {which.selected_project!r}" if which.selected_project else ledger.store.url
    return PrefectBtError(
        f"There is no training job in {where} yet.",
        next_step="Start one: prefect-bt push config.py",
    )


def get_reconciled_state(ledger: Ledger, job_id: str, terminal: Terminal) -> JobState:
    """Return the state of the job, after recording the end of a job whose process died."""
    state = ledger.get_state(job_id)
    if state.terminal:
        return state
    from prefect_bt.jobs.reconcile import reconcile_job

    try:
        reconcile_job(ledger, job_id)
    except PrefectBtError as error:
        # The record can be shown without the substrate that ran the job.
        terminal.warn(f"Job {job_id} is shown as recorded; its nodes are unreachable: {error}")
    return ledger.get_state(job_id)
