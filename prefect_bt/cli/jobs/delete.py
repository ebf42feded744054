"""`prefect-bt delete`: delete a job or a project permanently."""

from __future__ import annotations

from prefect_bt.cli.ui.options import NO_FILTER, InjectedTerminal, JobFilter, Output, Yes
from prefect_bt.cli.ui.terminal import Terminal, format_count
from prefect_bt.errors import NotFoundError, UsageError
from prefect_bt.jobs.delete import (
    check_deletable,
    delete_job,
    delete_project,
    get_project_id,
    list_project_jobs,
)
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.settings import Settings


def delete(
    *,
    which: JobFilter = NO_FILTER,
    yes: Yes = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Delete a job with its checkpoints and logs, or a project with all its jobs and its cache.

    A job that still runs is not deleted, nor a job whose checkpoints another job or a deployment
    uses. An interrupted deletion continues when the command runs again.

    Examples:

    `prefect-bt delete --job-id abc1234`

    `prefect-bt delete --project my-project --yes`
    """
    ledger = open_ledger()
    if which.job_id is not None:
        document, done = _delete_job(terminal, ledger, which, yes)
    elif which.selected_project:
        document, done = _delete_project(terminal, ledger, which.selected_project, yes)
    else:
        step = "Give --job-id or --project."
        raise UsageError("delete needs a job or a project.", next_step=step)
    return terminal.print_result(document, lambda: terminal.echo(done, style="green"))


def _delete_job(
    terminal: Terminal, ledger: Ledger, which: JobFilter, yes: bool
) -> tuple[dict[str, object], str]:
    job_id = which.job_id or ""
    project_id = get_project_id(ledger, job_id)
    if which.selected_project and ledger.projects.get(which.selected_project).id != project_id:
        step = f"It belongs to project {project_id}, not {which.selected_project!r}."
        raise NotFoundError("job", job_id, next_step=step)
    check_deletable(ledger, project_id, job_id)
    terminal.confirm(f"Delete job {job_id} with its checkpoints and logs permanently?", yes=yes)
    with terminal.spinner(f"Deleting job {job_id}"):
        document = delete_job(ledger, job_id, settings=Settings())
    return document, f"Job {job_id} is deleted."


def _delete_project(
    terminal: Terminal, ledger: Ledger, name: str, yes: bool
) -> tuple[dict[str, object], str]:
    project = ledger.projects.get(name)
    jobs = list_project_jobs(ledger, project.id)
    for job_id in jobs:
        check_deletable(ledger, project.id, job_id)
    count = format_count(len(jobs), "job")
    terminal.confirm(
        f"Delete project {project.name!r} with {count} and its cache permanently?", yes=yes
    )
    with terminal.spinner(f"Deleting project {project.name!r}"):
        document = delete_project(ledger, project.id, settings=Settings())
    return document, f"Project {project.name!r} is deleted, with {count}."
