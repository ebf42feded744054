"""`prefect-bt view`: show projects, jobs, or one job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prefect_bt.cli.jobs.selection import (
    ACTIVE,
    QUEUED,
    get_reconciled_state,
    list_entries,
    no_jobs_error,
    select_jobs,
)
from prefect_bt.cli.ui.options import NO_FILTER, InjectedTerminal, JobFilter, Output, PositiveCount
from prefect_bt.cli.ui.terminal import OK, Terminal
from prefect_bt.errors import PrefectBtError
from prefect_bt.job_index.entries import open_catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prefect_bt.job_index.entries import JobCatalog, JobEntry
    from prefect_bt.ledger.ledger import Ledger
    from prefect_bt.ledger.records import ProjectRecord

Document = dict[str, Any]

DEFAULT_LIMIT: Final = 50
"""Jobs of a project that are shown unless --limit or --all is given."""


def view(
    *,
    which: JobFilter = NO_FILTER,
    limit: PositiveCount = None,
    all: bool = False,
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

    `prefect-bt view --project my-project -o json`
    """
    from prefect_bt.ledger.opening import open_ledger

    if all and limit is not None:
        raise PrefectBtError("--all and --limit exclude each other.", next_step="Give one of them.")
    ledger = open_ledger()
    if which.job_id:
        _show_one(terminal, ledger, which)
    elif which.selected_project or all or limit is not None:
        _show_newest(terminal, ledger, which, None if all else limit or DEFAULT_LIMIT)
    else:
        _show_overview(terminal, ledger)
    return OK


def _show_one(terminal: Terminal, ledger: Ledger, which: JobFilter) -> None:
    [record] = select_jobs(ledger, which, terminal)
    from prefect_bt.cli.jobs import render

    document = _reader(ledger, terminal)(record.id)
    terminal.print_result(document, lambda: render.show_job(terminal, document))


def _show_newest(terminal: Terminal, ledger: Ledger, which: JobFilter, limit: int | None) -> None:
    """Show the newest jobs of a project or of the store; a single one in detail."""
    from prefect_bt.cli.jobs import render

    catalog = open_catalog(ledger, warn=terminal.warn)
    entries = list_entries(catalog, which, terminal)
    shown = entries if limit is None else entries[-limit:]
    documents = catalog.list_documents(shown, _reader(ledger, terminal))
    if terminal.machine_readable:
        terminal.print_json({"training_jobs": documents, "total_jobs": len(entries)})
    elif not documents:
        raise no_jobs_error(ledger, which)
    else:
        render.show_details(terminal, documents)
    if len(shown) < len(entries):
        terminal.warn(
            f"Showing the newest {len(shown)} of {len(entries)} jobs. More: --limit N, or --all."
        )


def _show_overview(terminal: Terminal, ledger: Ledger) -> None:
    from prefect_bt.cli.jobs import render

    catalog, read = open_catalog(ledger, warn=terminal.warn), _reader(ledger, terminal)
    going = catalog.list_unfinished(
        catalog.list_entries(), lambda job_id: get_reconciled_state(ledger, job_id, terminal)
    )
    projects = list(_projects(catalog, ledger.list_projects(), read))
    documents = catalog.list_documents(going, read)
    queued, active = (
        [one for one in documents if one["current_status"] in wanted] for wanted in (QUEUED, ACTIVE)
    )
    queued.sort(key=lambda job: -int(job["priority"]))
    document = {"training_projects": projects, "queued_jobs": queued, "active_jobs": active}
    terminal.print_result(document, lambda: render.show_overview(terminal, document))


def _reader(ledger: Ledger, terminal: Terminal) -> Callable[[str], Document]:
    """Return a function that reads the document of a job, after its state was reconciled."""
    from prefect_bt.jobs.job_json import job_document

    def read(job_id: str) -> Document:
        get_reconciled_state(ledger, job_id, terminal)
        return job_document(ledger, ledger.get_job(job_id))

    return read


def _projects(
    catalog: JobCatalog, projects: Sequence[ProjectRecord], read: Callable[[str], Document]
) -> Iterator[Document]:
    newest: dict[str, JobEntry] = {entry.project_id: entry for entry in catalog.list_entries()}
    latest = {
        one["training_project_id"]: one
        for one in catalog.list_documents(list(newest.values()), read)
    }
    for project in projects:
        yield _project(project, latest.get(project.id))


def _project(project: ProjectRecord, latest: Document | None) -> Document:
    """Return the JSON document of a project."""
    from prefect_bt.jobs.job_json import format_iso

    created = format_iso(project.created_at)
    return {
        "id": project.id,
        "name": project.name,
        "created_at": created,
        "updated_at": latest["updated_at"] if latest else created,
        "team_name": project.team_name or None,
        "latest_job": latest,
    }
