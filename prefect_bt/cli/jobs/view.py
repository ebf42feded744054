"""`prefect-bt view`: projects and jobs, or one job in detail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from prefect_bt.cli.jobs.selection import (
    ACTIVE,
    QUEUED,
    get_reconciled_state,
    list_entries,
    no_jobs_error,
    select_jobs,
)
from prefect_bt.cli.ui.options import NO_FILTER, InjectedTerminal, JobFilter, Output
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
    limit: Annotated[
        int | None,
        Parameter(
            validator=Number(gte=1),
            help=f"Show only the newest jobs, at most this many; {DEFAULT_LIMIT} unless set.",
        ),
    ] = None,
    all: Annotated[bool, Parameter(help="Show all jobs of the project, or of the store.")] = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Show projects and what is queued or active; with a filter, the jobs it lets through.

    One job is shown in detail, with its attempts and checkpoints. Of a project, the 50 newest jobs
    are shown, the newest at the bottom; --limit and --all show others.

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
    document = _reader(ledger, terminal)(record.id)
    if terminal.machine_readable:
        terminal.print_json(document)
        return
    from prefect_bt.cli.jobs import render

    render.show_job(terminal, document)


def _show_newest(terminal: Terminal, ledger: Ledger, which: JobFilter, limit: int | None) -> None:
    """The newest jobs of a project or of the store: one in detail, several as a table."""
    catalog = open_catalog(ledger, warn=terminal.warn)
    entries = list_entries(catalog, which, terminal)
    shown = entries if limit is None else entries[-limit:]
    documents = catalog.list_documents(shown, _reader(ledger, terminal))
    if terminal.machine_readable:
        terminal.print_json({"training_jobs": documents, "total_jobs": len(entries)})
    elif not documents:
        raise no_jobs_error(ledger, which)
    else:
        _show_table(terminal, documents, one=len(entries) == 1)
    if len(shown) < len(entries):
        terminal.info(
            f"{len(shown)} of {len(entries)} jobs are shown, the newest. "
            "More: --limit N, or --all.",
            style="yellow",
        )


def _show_table(terminal: Terminal, documents: list[Document], *, one: bool) -> None:
    from prefect_bt.cli.jobs import render

    if one:
        render.show_job(terminal, documents[0])
    else:
        render.show_jobs(terminal, documents, title="Training Job Details")


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
    if terminal.machine_readable:
        terminal.print_json(
            {"training_projects": projects, "queued_jobs": queued, "active_jobs": active}
        )
        return
    render.show_projects(terminal, projects)
    terminal.echo()
    if queued:
        render.show_queued(terminal, queued)
    if queued and active:
        terminal.echo()
    if active:
        render.show_jobs(terminal, active, title="Active Training Jobs")
    if not queued and not active:
        terminal.echo("No queued or active training jobs.", style="yellow")


def _reader(ledger: Ledger, terminal: Terminal) -> Callable[[str], Document]:
    """Read a job's document from the store, after its end is settled."""
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
