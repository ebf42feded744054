"""`prefect-bt view`: projects and jobs, or one job in detail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect_bt.cli.options import NO_FILTER, Here, JobFilter, Output
from prefect_bt.cli.selection import ACTIVE, QUEUED, find_jobs, no_jobs, settled_state
from prefect_bt.cli.terminal import OK, Terminal

if TYPE_CHECKING:
    from prefect_bt.ledger import Ledger
    from prefect_bt.records import JobRecord, ProjectRecord

Document = dict[str, Any]


def view(*, which: JobFilter = NO_FILTER, output: Output = "cli-table", terminal: Here) -> int:
    """Show projects and what is queued or active; with a filter, the jobs it lets through.

    One job is shown in detail, with its attempts and checkpoints.

    `prefect-bt view --job-id abc1234`

    `prefect-bt view --project my-project -o json`
    """
    from prefect_bt.jobs import open_ledger

    ledger, beside = open_ledger(), terminal.beside(output)
    if which.job_id or which.wanted_project:
        _show_matches(beside, ledger, which)
    else:
        _show_overview(beside, ledger)
    return OK


def _show_matches(terminal: Terminal, ledger: Ledger, which: JobFilter) -> None:
    from prefect_bt.cli import render

    documents = [_document(ledger, r, terminal) for r in find_jobs(ledger, which, terminal)]
    if terminal.documents:
        terminal.document(documents[0] if which.job_id else {"training_jobs": documents})
    elif not documents:
        raise no_jobs(ledger, which)
    elif len(documents) == 1:
        render.show_job(terminal, documents[0])
    else:
        render.show_jobs(terminal, documents, title="Training Job Details")


def _show_overview(terminal: Terminal, ledger: Ledger) -> None:
    from prefect_bt.cli import render

    records = ledger.jobs()
    states = {record.id: settled_state(ledger, record.id, terminal) for record in records}
    projects = [_project(ledger, p, records, terminal) for p in ledger.projects()]
    queued, active = (
        [_document(ledger, r, terminal) for r in records if states[r.id] in wanted]
        for wanted in (QUEUED, ACTIVE)
    )
    queued.sort(key=lambda job: -int(job["priority"]))
    if terminal.documents:
        terminal.document(
            {"training_projects": projects, "queued_jobs": queued, "active_jobs": active}
        )
        return
    render.show_projects(terminal, projects)
    terminal.say()
    if queued:
        render.show_queued(terminal, queued)
    if queued and active:
        terminal.say()
    if active:
        render.show_jobs(terminal, active, title="Active Training Jobs")
    if not queued and not active:
        terminal.say("No queued or active training jobs.", style="yellow")


def _document(ledger: Ledger, record: JobRecord, terminal: Terminal) -> Document:
    from prefect_bt.jobs import job_document

    settled_state(ledger, record.id, terminal)
    return job_document(ledger, record)


def _project(
    ledger: Ledger, project: ProjectRecord, records: list[JobRecord], terminal: Terminal
) -> Document:
    """TrainingProject JSON of §13."""
    from prefect_bt.jobs import iso

    own = [record for record in records if record.project_id == project.id]
    latest = _document(ledger, own[-1], terminal) if own else None
    created = iso(project.created_at)
    return {
        "id": project.id,
        "name": project.name,
        "created_at": created,
        "updated_at": latest["updated_at"] if latest else created,
        "team_name": project.team_name or None,
        "latest_job": latest,
    }
