"""`prefect-bt stop`: stop jobs and wait until they have ended."""

from __future__ import annotations

from prefect_bt.cli.jobs import render
from prefect_bt.cli.jobs.selection import list_unfinished_jobs, select_jobs
from prefect_bt.cli.logs import follow
from prefect_bt.cli.ui.options import NO_FILTER, InjectedTerminal, JobFilter, Yes
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal
from prefect_bt.errors import PrefectBtError, StateError, UsageError
from prefect_bt.jobs.job_json import current_user, job_document
from prefect_bt.jobs.stop import stop_job, wait_for_end
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.prefect_api.client import cancel_run


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
    ledger = open_ledger()
    if abandoned and (which.job_id is None or all):
        raise UsageError("--abandoned needs one job.", next_step="Name it with --job-id.")
    if which.job_id is not None:
        named = select_jobs(ledger, which, terminal)
        return _stop_jobs(terminal, ledger, named, named=True, abandoned=abandoned)
    unfinished = list_unfinished_jobs(ledger, which, terminal)
    if all and not unfinished:
        terminal.warn("No queued or active training jobs.")
        return OK
    if not all:
        _check_single_job(terminal, ledger, unfinished)
    what = f"{len(unfinished)} training jobs" if all else f"job {unfinished[0].id}"
    terminal.confirm(f"Stop {what}?", yes=yes)
    return _stop_jobs(terminal, ledger, unfinished)


def _check_single_job(terminal: Terminal, ledger: Ledger, active: list[JobRecord]) -> None:
    if not active:
        raise PrefectBtError("No queued or active training jobs.")
    if len(active) > 1:
        documents = [job_document(ledger, record) for record in active]
        render.show_active(terminal, documents)
        raise PrefectBtError(
            f"{len(active)} training jobs are queued or active.",
            next_step="Give --job-id or --all.",
        )


def _stop_jobs(
    terminal: Terminal,
    ledger: Ledger,
    records: list[JobRecord],
    *,
    named: bool = False,
    abandoned: bool = False,
) -> int:
    """Stop the jobs. `named`: the user gave the ID, so a job that has ended is an error."""
    watched: list[JobRecord] = []
    by = current_user() or "a user"
    code = OK
    for record in records:
        try:
            terminal.info(stop_job(ledger, record.id, by=by, abandoned=abandoned))
        except StateError as error:
            if not named and ledger.get_state(record.id).terminal:  # it ended meanwhile
                watched.append(record)
                continue
            terminal.error(str(error))
            code = FAILED
        else:
            watched.append(record)
    for record in watched:
        state = _wait_for_job(terminal, ledger, record)
        if state is JobState.STOPPED:
            _cancel_pending_runs(terminal, ledger, record)
        elif state.failed:
            code = FAILED
    return code


def _cancel_pending_runs(terminal: Terminal, ledger: Ledger, record: JobRecord) -> None:
    """Cancel the flow runs of a job that was stopped while it waited.

    Without this, Prefect shows such a run as late until a worker takes it, or as waiting.
    """
    runs, events = ledger.runs.list(record.id), ledger.list_events(record.id)
    waited = len(events) > 1 and events[-2].state is JobState.PENDING
    if not runs or (ledger.list_attempts(record.id) and not waited):
        return
    try:
        for run in runs:
            cancel_run(run.flow_run_id)
    except PrefectBtError as error:
        terminal.warn(f"The job is stopped, but its flow run cannot be canceled: {error}")


def _wait_for_job(terminal: Terminal, ledger: Ledger, record: JobRecord) -> JobState:
    try:
        with terminal.spinner(f"Waiting for job {record.id} to end"):
            state = wait_for_end(ledger, record.id)
    except KeyboardInterrupt:
        terminal.warn(f"\nJob {record.id} continues to stop without this command.")
        raise
    if state is JobState.STOPPED:
        terminal.echo(f"Training job {record.id} stopped successfully.", style="green")
    else:
        follow.print_job_end(terminal, ledger, record.id)
    return state
