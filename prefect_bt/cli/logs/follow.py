"""Follow a job: print its log, wait for its end, detach on Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TextIO

from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal
from prefect_bt.ledger.states import JobState

if TYPE_CHECKING:
    from prefect_bt.cli.logs.lines import TextStream
    from prefect_bt.job_service.protocol import JobService, LogQuery
    from prefect_bt.logs.line_filter import JobLine

END_MESSAGES = {
    JobState.COMPLETED: ("Training job {id} completed successfully.", "green"),
    JobState.FAILED: ("Training job {id} failed.", "red"),
    JobState.DEPLOY_FAILED: ("Training job {id} could not be deployed.", "red"),
    JobState.STOPPED: ("Training job {id} was stopped.", "yellow"),
}


def follow_job(terminal: Terminal, jobs: JobService, job_id: str, *, with_log: bool) -> JobState:
    """Follow a submitted job to its end, with or without its log, and print how it ended."""
    from prefect_bt.cli.logs.lines import (
        format_colored,
        format_text,
        name_time_zone,
        should_use_color,
    )
    from prefect_bt.job_service.protocol import LogQuery

    if not with_log:
        with detach_on_interrupt(terminal, jobs, job_id):
            with _open_panel(terminal, jobs, job_id):
                jobs.wait_for_end(job_id)
            return print_job_end(terminal, jobs, job_id)
    name_time_zone()
    if terminal.machine_readable:
        return tail_logs(
            terminal, jobs, job_id, LogQuery(follow=True), format_text, stream=sys.stderr
        )
    colored = should_use_color()
    query = LogQuery(levels=colored, follow=True)
    format_line = format_colored if colored else format_text
    return tail_logs(terminal, jobs, job_id, query, format_line, panel=True)


def tail_logs(
    terminal: Terminal,
    jobs: JobService,
    job_id: str,
    query: LogQuery,
    format_line: Callable[[JobLine], str],
    *,
    stream: TextIO | None = None,
    panel: bool = False,
) -> JobState:
    """Print the lines of the job until it has ended, then how it ended.

    `panel`: show the state of the job below its lines on a terminal.
    """
    from prefect_bt.cli.logs.lines import write_lines

    lines = jobs.read_lines(job_id, query)
    with detach_on_interrupt(terminal, jobs, job_id):
        shown = _open_panel(terminal, jobs, job_id) if panel else nullcontext(None)
        with shown as above:
            write_lines(lines, format_line, above or stream)
        return print_job_end(terminal, jobs, job_id)


def _open_panel(
    terminal: Terminal, jobs: JobService, job_id: str
) -> AbstractContextManager[TextStream | None]:
    """Return the panel of a job whose records this process can read."""
    from prefect_bt.cli.logs.panel import live_panel

    ledger = jobs.ledger
    return live_panel(terminal, ledger, ledger.get_job(job_id)) if ledger else nullcontext(None)


def print_job_end(terminal: Terminal, jobs: JobService, job_id: str) -> JobState:
    """Print the final state of the job, and its error if it failed."""
    end = jobs.read_end(job_id)
    state, left, warnings = JobState(end["state"]), end["uncommitted"], end["warnings"]
    words, style = END_MESSAGES.get(state, ("Training job {id} continues.", ""))
    if left and state is JobState.COMPLETED:
        words, style = (
            "Training job {id} completed, but not every checkpoint is committed.",
            "yellow",
        )
    elif warnings:
        words, style = "Training job {id} completed, with warnings.", "yellow"
    terminal.info(words.format(id=job_id), style=style)
    if state.failed:
        option = " --first-failure" if end["first_failure"] else ""
        hint = f"  Log: prefect-bt logs --job-id {job_id}{option}{jobs.option}"
        terminal.info(f"{end['message']}\n{hint}" if end["message"] else hint)
    for sentence in warnings:
        terminal.warn(f"Warning: {sentence}")
    if left:
        terminal.warn("Not committed:")
        for line in left:
            terminal.info(f"  {line}")
    return state


def exit_code(state: JobState) -> int:
    """Return the exit code of a command that waited: 0 for COMPLETED only."""
    return OK if state is JobState.COMPLETED else FAILED


@contextmanager
def detach_on_interrupt(terminal: Terminal, jobs: JobService, job_id: str) -> Generator[None]:
    """Print how to follow and to stop the job if Ctrl-C interrupts the block."""
    try:
        yield
    except KeyboardInterrupt:
        terminal.warn(f"\nDetached. Training job {job_id} continues.")
        terminal.info(f"  Follow it again:  prefect-bt logs --job-id {job_id} --tail{jobs.option}")
        terminal.info(f"  Stop it:          prefect-bt stop --job-id {job_id}{jobs.option}")
        raise
