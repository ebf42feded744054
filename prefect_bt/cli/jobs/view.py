"""`prefect-bt view`: show projects, jobs, or one job."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from prefect_bt.cli.jobs.selection import (
    get_reconciled_state,
    list_entries,
    no_jobs_error,
    open_job_index,
    select_jobs,
)
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
from prefect_bt.job_index.overview import read_overview
from prefect_bt.ledger.states import JobState

if TYPE_CHECKING:
    from collections.abc import Callable

    from prefect_bt.job_index.entries import JobIndex
    from prefect_bt.ledger.ledger import Ledger

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
    from prefect_bt.ledger.open_ledger import open_ledger

    if all and limit is not None:
        raise UsageError("--all and --limit exclude each other.", next_step="Give one of them.")
    read = partial(_read, terminal, open_ledger(), which, None if all else limit or 0)
    if watch:
        terminal.watch(read)
    return terminal.print_result(*read())


def _read(
    terminal: Terminal, ledger: Ledger, which: JobFilter, limit: int | None
) -> tuple[Document, Callable[[], None]]:
    """Return the document and a function that prints it. `limit`: None for all, 0 if not given."""
    from prefect_bt.cli.jobs import render
    from prefect_bt.queue.queue_context import queue_context
    from prefect_bt.settings import Settings

    jobs = open_job_index(ledger, terminal)
    if which.job_id:
        [record] = select_jobs(ledger, which, terminal)
        job = jobs.read(record.id)
        if not JobState(job["current_status"]).terminal:
            from prefect_bt.attempts.live_nodes import live_document
            from prefect_bt.jobs.metrics.run_summary import run_summary

            state_dir = Settings().state_dir
            live = live_document(ledger, record, state_dir)
            summary = run_summary(ledger, record, state_dir)
            queued = queue_context(ledger, record.id)
            job = {**job, "queue_context": queued, "live": live, **summary}
        return job, lambda: render.show_job(terminal, job)
    if which.selected_project or limit != 0:
        newest = _list_newest(terminal, jobs, which, limit if limit is None else limit or _LIMIT)
        return newest, lambda: render.show_details(terminal, newest)
    get_state = partial(get_reconciled_state, ledger, terminal=terminal)
    overview = read_overview(jobs, get_state)
    return overview, lambda: render.show_overview(terminal, overview)


def _list_newest(
    terminal: Terminal, jobs: JobIndex, which: JobFilter, limit: int | None
) -> Document:
    entries = list_entries(jobs, which, terminal)
    shown = entries if limit is None else entries[-limit:]
    documents = jobs.list_documents(shown)
    if not documents and not terminal.machine_readable:
        raise no_jobs_error(jobs.ledger, which)
    return {"training_jobs": documents, "total_jobs": len(entries)}
