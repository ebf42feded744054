"""Select the jobs of a command by its filters."""

from __future__ import annotations

from functools import partial

from prefect_bt.cli.ui.options import JobFilter
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.job_service.protocol import JobService
from prefect_bt.job_service.remotes import find_server, find_trussrc, read_remotes
from prefect_bt.job_service.store_service import StoreJobs
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.settings import Settings


def open_jobs(terminal: Terminal, remote: str | None = None) -> JobService:
    """Return the jobs of the server of that name or of the settings, else those of the store."""
    server = find_server(remote)
    if remote and remote not in read_remotes(find_trussrc()):
        used = f"the server {server.url}" if server else f"the store {Settings().store}"
        terminal.warn(f"There is no remote {remote!r} in {find_trussrc()}; {used} is used.")
    if server:
        from prefect_bt.cli.ui.progress_bars import byte_progress
        from prefect_bt.job_service.http_service import HttpJobs

        upload = partial(byte_progress, terminal, "Uploading the workspace")
        return HttpJobs(server, warn=terminal.warn, upload=upload)
    from prefect_bt.ledger.open_ledger import open_ledger

    return StoreJobs(open_ledger(), warn=terminal.warn)


def select_project(which: JobFilter, terminal: Terminal) -> str | None:
    """Return the project of the filter, a name or an ID."""
    if which.project and which.project_id:
        terminal.warn("Both --project and --project-id were given; --project is used.")
    return which.selected_project


def select_jobs(ledger: Ledger, which: JobFilter, terminal: Terminal) -> list[JobRecord]:
    """Return the jobs that match the filter, oldest first."""
    jobs = StoreJobs(ledger, warn=terminal.warn)
    return jobs.select_jobs(which.job_id, select_project(which, terminal))


def select_job(ledger: Ledger, which: JobFilter, terminal: Terminal) -> JobRecord:
    """Return the job with the given ID, or the newest one that matches."""
    jobs = StoreJobs(ledger, warn=terminal.warn)
    return jobs.select_job(which.job_id, select_project(which, terminal))


def get_reconciled_state(ledger: Ledger, job_id: str, terminal: Terminal) -> JobState:
    """Return the state of the job, after recording the end of a job whose process died."""
    return StoreJobs(ledger, warn=terminal.warn).get_reconciled_state(job_id)
