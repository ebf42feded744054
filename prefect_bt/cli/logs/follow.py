"""Follow a job: print its log, wait for its end, detach on Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, TextIO

from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal
from prefect_bt.errors import StoreError
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState

if TYPE_CHECKING:
    from prefect_bt.ledger.ledger import Ledger
    from prefect_bt.logs.job_reader import JobLogs
    from prefect_bt.logs.line_filter import JobLine, LineFilter

END_MESSAGES = {
    JobState.COMPLETED: ("Training job {id} completed successfully.", "green"),
    JobState.FAILED: ("Training job {id} failed.", "red"),
    JobState.DEPLOY_FAILED: ("Training job {id} could not be deployed.", "red"),
    JobState.STOPPED: ("Training job {id} was stopped.", "yellow"),
}


def follow_job(
    terminal: Terminal, ledger: Ledger, record: JobRecord, *, with_log: bool
) -> JobState:
    """Follow a submitted job to its end, with or without its log, and print how it ended."""
    if not with_log:
        return wait_for_job(terminal, ledger, record)
    from prefect_bt.cli.logs.lines import (
        format_colored,
        format_text,
        name_time_zone,
        should_use_color,
    )
    from prefect_bt.logs.line_filter import LineFilter
    from prefect_bt.logs.open_logs import open_logs
    from prefect_bt.settings import Settings

    name_time_zone()
    logs = open_logs(ledger, record, Settings().state_dir)
    if terminal.machine_readable:
        return tail_logs(terminal, logs, LineFilter(), format_text, stream=sys.stderr)
    colored = should_use_color()
    query = LineFilter(levels=colored)
    format_line = format_colored if colored else format_text
    return tail_logs(terminal, logs, query, format_line, panel=True)


def tail_logs(
    terminal: Terminal,
    logs: JobLogs,
    query: LineFilter,
    format_line: Callable[[JobLine], str],
    *,
    limit: int | None = None,
    stream: TextIO | None = None,
    panel: bool = False,
) -> JobState:
    """Print the lines of the job until it has ended, then how it ended.

    `limit`: number of newest lines to print before those that follow. `panel`: show the state of
    the job below its lines on a terminal.
    """
    from prefect_bt.cli.logs.lines import write_lines
    from prefect_bt.cli.logs.panel import live_panel
    from prefect_bt.jobs.reconcile import Reconciler
    from prefect_bt.logs.follow import follow_lines

    ledger, record = logs.ledger, logs.record
    reconcile = Reconciler(ledger, record.id, warn=terminal.warn)

    def warn_of_outage(error: StoreError) -> None:
        terminal.warn(f"The log continues when the store answers again: {error}")

    lines = follow_lines(logs, query, limit=limit, refresh=reconcile, on_outage=warn_of_outage)
    with detach_on_interrupt(terminal, record.id):
        shown = live_panel(terminal, ledger, record) if panel else nullcontext(None)
        with shown as above:
            write_lines(lines, format_line, above or stream)
        warn_corrupt_logs(terminal, logs)
        return print_job_end(terminal, ledger, record.id)


def warn_corrupt_logs(terminal: Terminal, logs: JobLogs) -> None:
    """Print a warning for each log that differs from its archived digest."""
    for sentence in logs.corruption:
        terminal.warn(f"{sentence} The lines that can be read are shown.")


def wait_for_job(terminal: Terminal, ledger: Ledger, record: JobRecord) -> JobState:
    """Wait until the job has ended, then print how it ended."""
    from prefect_bt.cli.logs.panel import live_panel
    from prefect_bt.jobs import stop

    with detach_on_interrupt(terminal, record.id):
        with live_panel(terminal, ledger, record):
            stop.wait_for_end(ledger, record.id)
        return print_job_end(terminal, ledger, record.id)


def print_job_end(terminal: Terminal, ledger: Ledger, job_id: str) -> JobState:
    """Print the final state of the job, and its error if it failed."""
    last = ledger.list_events(job_id)[-1]
    left = _list_uncommitted(ledger, job_id, last.state)
    warnings = _list_warnings(ledger, job_id, last.state)
    words, style = END_MESSAGES.get(last.state, ("Training job {id} continues.", ""))
    if left and last.state is JobState.COMPLETED:
        words, style = (
            "Training job {id} completed, but not every checkpoint is committed.",
            "yellow",
        )
    elif warnings:
        words, style = "Training job {id} completed, with warnings.", "yellow"
    terminal.info(words.format(id=job_id), style=style)
    if last.state.failed:
        failed = any(outcome.failure for outcome in ledger.list_outcomes(job_id))
        option = " --first-failure" if failed else ""
        hint = f"  Log: prefect-bt logs --job-id {job_id}{option}"
        terminal.info(f"{last.message}\n{hint}" if last.message else hint)
    for sentence in warnings:
        terminal.warn(f"Warning: {sentence}")
    if left:
        terminal.warn("Not committed:")
        for line in left:
            terminal.info(f"  {line}")
    return last.state


def _list_warnings(ledger: Ledger, job_id: str, state: JobState) -> list[str]:
    from prefect_bt.attempts.success_summary import list_warnings

    outcomes = ledger.list_outcomes(job_id) if state is JobState.COMPLETED else []
    return list_warnings(outcomes[-1].nodes) if outcomes else []


def _list_uncommitted(ledger: Ledger, job_id: str, state: JobState) -> list[str]:
    """Return lines about the checkpoints that the job has left on its nodes."""
    from prefect_bt.checkpoints.committed.catalog import list_checkpoints
    from prefect_bt.checkpoints.sync_status import read_sync_status
    from prefect_bt.checkpoints.uncommitted import format_uncommitted_report

    if not state.terminal:
        return []
    record = ledger.get_job(job_id)
    found = list_checkpoints(ledger.store, record.project_id, job_id)
    sync = read_sync_status(ledger, record, state, found, checkpointing=True)
    return format_uncommitted_report(job_id, sync.uncommitted)


def exit_code(state: JobState) -> int:
    """Return the exit code of a command that waited: 0 for COMPLETED only."""
    return OK if state is JobState.COMPLETED else FAILED


@contextmanager
def detach_on_interrupt(terminal: Terminal, job_id: str) -> Generator[None]:
    """Print how to follow and to stop the job if Ctrl-C interrupts the block."""
    try:
        yield
    except KeyboardInterrupt:
        terminal.warn(f"\nDetached. Training job {job_id} continues.")
        terminal.info(f"  Follow it again:  prefect-bt logs --job-id {job_id} --tail")
        terminal.info(f"  Stop it:          prefect-bt stop --job-id {job_id}")
        raise
