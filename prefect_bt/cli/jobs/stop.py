"""`prefect-bt stop`: stop jobs and wait until they have ended."""

from __future__ import annotations

from prefect_bt.cli.jobs import render
from prefect_bt.cli.jobs.selection import open_jobs, select_project
from prefect_bt.cli.logs import follow
from prefect_bt.cli.ui.options import NO_FILTER, InjectedTerminal, JobFilter, Yes
from prefect_bt.cli.ui.tables import Document
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal
from prefect_bt.errors import PrefectBtError, StateError, UsageError
from prefect_bt.job_service.protocol import JobService
from prefect_bt.ledger.states import JobState


def stop(
    *,
    which: JobFilter = NO_FILTER,
    all: bool = False,
    abandoned: bool = False,
    yes: Yes = False,
    terminal: InjectedTerminal,
) -> int:
    """Send SIGTERM to the commands, wait for the grace period, and upload the last checkpoint.

    Without --job-id, exactly one job must be queued or active. Ctrl-C ends the waiting; the job is
    stopped all the same. The exit code is 1 if the job failed before it was stopped. A job that
    ended with --abandoned can continue on another machine: `prefect-bt retry`.

    Args:
        all: Stop every queued and active job.
        abandoned: Record the end of a job whose machine does not come back.

    Examples:

    `prefect-bt stop --job-id abc1234`

    `prefect-bt stop --all --project my-project`
    """
    jobs = open_jobs(terminal, which.remote)
    if abandoned and (which.job_id is None or all):
        raise UsageError("--abandoned needs one job.", next_step="Name it with --job-id.")
    project = select_project(which, terminal)
    if which.job_id is not None:
        named = [jobs.find_job(which.job_id, project).id]
        return _stop_jobs(terminal, jobs, named, named=True, abandoned=abandoned)
    unfinished = jobs.list_unfinished(project)
    if all and not unfinished:
        terminal.warn("No queued or active training jobs.")
        return OK
    if not all:
        _check_single_job(terminal, unfinished)
    ids = [one["id"] for one in unfinished]
    what = f"{len(ids)} training jobs" if all else f"job {ids[0]}"
    terminal.confirm(f"Stop {what}?", yes=yes)
    return _stop_jobs(terminal, jobs, ids)


def _check_single_job(terminal: Terminal, active: list[Document]) -> None:
    if not active:
        raise PrefectBtError("No queued or active training jobs.")
    if len(active) > 1:
        render.show_active(terminal, active)
        raise PrefectBtError(
            f"{len(active)} training jobs are queued or active.",
            next_step="Give --job-id or --all.",
        )


def _stop_jobs(
    terminal: Terminal,
    jobs: JobService,
    job_ids: list[str],
    *,
    named: bool = False,
    abandoned: bool = False,
) -> int:
    """Stop the jobs. `named`: the user gave the ID, so a job that has ended is an error."""
    watched: list[str] = []
    code = OK
    for job_id in job_ids:
        try:
            terminal.info(jobs.stop(job_id, abandoned=abandoned))
        except StateError as error:
            if not named and JobState(jobs.read_end(job_id)["state"]).terminal:
                watched.append(job_id)  # it ended meanwhile
                continue
            terminal.error(str(error))
            code = FAILED
        else:
            watched.append(job_id)
    for job_id in watched:
        state = _wait_for_job(terminal, jobs, job_id)
        if state is JobState.STOPPED:
            jobs.cancel_runs(job_id)
        elif state.failed:
            code = FAILED
    return code


def _wait_for_job(terminal: Terminal, jobs: JobService, job_id: str) -> JobState:
    try:
        with terminal.spinner(f"Waiting for job {job_id} to end"):
            state = jobs.wait_for_end(job_id)
    except KeyboardInterrupt:
        terminal.warn(f"\nJob {job_id} continues to stop without this command.")
        raise
    if state is JobState.STOPPED:
        terminal.echo(f"Training job {job_id} stopped successfully.", style="green")
    else:
        follow.print_job_end(terminal, jobs, job_id)
    return state
