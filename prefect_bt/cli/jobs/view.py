"""`prefect-bt view`: show projects, jobs, or one job."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from prefect_bt.cli.jobs.selection import open_jobs, select_project
from prefect_bt.cli.ui.options import (
    NO_FILTER,
    InjectedTerminal,
    JobFilter,
    Output,
    PositiveCount,
    Watch,
)
from prefect_bt.cli.ui.tables import Document
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.errors import UsageError
from prefect_bt.job_service.store_service import no_jobs_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from prefect_bt.job_service.protocol import JobService

_LIMIT: Final = 50
"""Jobs of a project that are shown unless --limit or --all is given."""


def view(
    *,
    which: JobFilter = NO_FILTER,
    limit: PositiveCount = None,
    all: bool = False,
    watch: Watch = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Show all projects and the queued and active jobs, or the jobs that match a filter.

    A single job is shown with its attempts and checkpoints. Lists have the newest job last.

    Args:
        limit: Show the newest N jobs; default: 50.
        all: Show all jobs of the project or of the store.

    Examples:

    `prefect-bt view`

    `prefect-bt view --job-id abc1234`

    `prefect-bt view --watch`

    `prefect-bt view --project my-project -o json`
    """
    if all and limit is not None:
        raise UsageError("--all and --limit exclude each other.", next_step="Give one of them.")
    jobs = open_jobs(terminal, which.remote)
    read = partial(_read, terminal, jobs, which, None if all else limit or 0)
    if watch:
        terminal.watch(read)
    return terminal.print_result(*read())


def _read(
    terminal: Terminal, jobs: JobService, which: JobFilter, limit: int | None
) -> tuple[Document, Callable[[], None]]:
    """Return the document and a function that prints it. `limit`: None for all, 0 if not given."""
    from prefect_bt.cli.jobs import render

    project = select_project(which, terminal)
    if which.job_id:
        job = jobs.describe_job(which.job_id, project)
        return job, lambda: render.show_job(terminal, job)
    if project or limit != 0:
        newest = jobs.list_jobs(project, limit if limit is None else limit or _LIMIT)
        if not newest["training_jobs"] and not terminal.machine_readable:
            raise no_jobs_error(jobs.url, project, jobs.option)
        return newest, lambda: render.show_details(terminal, newest)
    overview = jobs.read_overview()
    return overview, lambda: render.show_overview(terminal, overview, jobs.option)
