"""`prefect-bt delete`: delete a job or a project permanently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_bt.cli.ui.options import NO_FILTER, InjectedTerminal, JobFilter, Output, Yes
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal
from prefect_bt.errors import NotFoundError, PrefectBtError

if TYPE_CHECKING:
    from prefect_bt.ledger.ledger import Ledger


def delete(
    *,
    which: JobFilter = NO_FILTER,
    yes: Yes = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Delete a job with its checkpoints and logs, or a project with all its jobs and its cache.

    Refused while a job is not over, and while another job loads its checkpoints or a deployment
    serves them. Interrupted and run again, it goes on.

    `prefect-bt delete --job-id abc1234`
    """
    from prefect_bt.ledger.opening import open_ledger

    ledger = open_ledger()
    if which.job_id is not None:
        done = _delete_job(terminal, ledger, which, yes)
    elif which.selected_project:
        done = _delete_project(terminal, ledger, which.selected_project, yes)
    else:
        raise PrefectBtError(
            "Nothing to delete was named.", next_step="Give --job-id or --project."
        )
    if done is None:
        terminal.error("Nothing was deleted.")
        return FAILED
    if output == "json":
        terminal.print_json(done)
    return OK


def _delete_job(
    terminal: Terminal, ledger: Ledger, which: JobFilter, yes: bool
) -> dict[str, object] | None:
    from prefect_bt.jobs.delete import check_deletable, delete_job, get_project_id
    from prefect_bt.settings import Settings

    job_id = which.job_id or ""
    project_id = get_project_id(ledger, job_id)
    if which.selected_project and ledger.get_project(which.selected_project).id != project_id:
        step = f"It belongs to project {project_id}, not {which.selected_project!r}."
        raise NotFoundError("job", job_id, next_step=step)
    check_deletable(ledger, project_id, job_id)
    question = f"Delete job {job_id} with its checkpoints and logs, for good?"
    if not (yes or terminal.confirm(question)):
        return None
    with terminal.spinner(f"Deleting job {job_id}"):
        done = delete_job(ledger, job_id, settings=Settings())
    terminal.echo(f"Job {job_id} is deleted.", style="green")
    return done


def _delete_project(
    terminal: Terminal, ledger: Ledger, name: str, yes: bool
) -> dict[str, object] | None:
    from prefect_bt.jobs.delete import check_deletable, delete_project, list_project_jobs
    from prefect_bt.settings import Settings

    project = ledger.get_project(name)
    jobs = list_project_jobs(ledger, project.id)
    for job_id in jobs:
        check_deletable(ledger, project.id, job_id)
    count = "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"
    question = f"Delete project {project.name!r} with {count} and its cache, for good?"
    if not (yes or terminal.confirm(question)):
        return None
    with terminal.spinner(f"Deleting project {project.name!r}"):
        done = delete_project(ledger, project.id, settings=Settings())
    terminal.echo(f"Project {project.name!r} is deleted, with {count}.", style="green")
    return done
