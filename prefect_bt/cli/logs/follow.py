"""Staying with a job that runs elsewhere: following its log, waiting for its end, letting go.

The job never belongs to the terminal: Ctrl-C ends the watching and says how to go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal, write_stdout
from prefect_bt.errors import PrefectBtError
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState

if TYPE_CHECKING:
    from prefect_bt.ledger.ledger import Ledger
    from prefect_bt.logs.deduplication import LineDeduplicator
    from prefect_bt.logs.job_reader import JobLine, JobLogs, LineFilter

TextWriter = Callable[[str], object]

RECONCILE_INTERVAL = 5.0

END_MESSAGES = {
    JobState.COMPLETED: ("Training job {id} completed successfully.", "green"),
    JobState.FAILED: ("Training job {id} failed.", "red"),
    JobState.DEPLOY_FAILED: ("Training job {id} could not be deployed.", "red"),
    JobState.STOPPED: ("Training job {id} was stopped.", "yellow"),
}

FAILED_STATES = frozenset({JobState.FAILED, JobState.DEPLOY_FAILED})


@dataclass(frozen=True)
class LogDisplayOptions:
    """Options for showing lines.

    `limit`: only so many lines, the newest. `raw`: keep the controls that steer a terminal.
    """

    deduplicator: LineDeduplicator | None = None
    as_json: bool = False
    use_color: bool = False
    raw: bool = False
    platform: bool = True
    limit: int | None = None


def open_logs(
    ledger: Ledger, record: JobRecord, terminal: Terminal, *, platform: bool = True
) -> JobLogs:
    """The job's logs; without the live ones, and saying so, when its substrate is out of reach.

    `platform`: with the platform's own lines.
    """
    from prefect_bt.logs.job_reader import JobLogs
    from prefect_bt.logs.platform_lines import JobHistory
    from prefect_bt.settings import Settings
    from prefect_bt.substrates import open_substrate

    try:
        options = Settings().substrate_options(record.substrate, store=ledger.store.url)
        live = open_substrate(record.substrate, **options)
    except PrefectBtError as error:
        terminal.warn(f"Only what is in the store is shown: {error}")
        live = None
    history = JobHistory(ledger, record) if platform else None
    return JobLogs(ledger, record, live=live, platform=history)


def follow(
    terminal: Terminal,
    ledger: Ledger,
    record: JobRecord,
    query: LineFilter,
    shown: LogDisplayOptions,
) -> Iterator[JobLine | None]:
    """Lines until the job is over; a spinner until there is a first one, a None when none comes.

    Says which logs are not what was sealed.
    """
    from prefect_bt.logs.job_reader import follow_lines

    logs = open_logs(ledger, record, terminal, platform=shown.platform)
    settle = _make_reconciler(terminal, ledger, record.id)
    looks = follow_lines(logs, query, limit=shown.limit, refresh=settle)
    with terminal.spinner(f"Waiting for the first log line of job {record.id}"):
        first = next((line for line in looks if line is not None), None)
    yield first
    yield from looks
    warn_corrupt_logs(terminal, logs)


def warn_corrupt_logs(terminal: Terminal, logs: JobLogs) -> None:
    """One sentence a log that was read and is not what was sealed."""
    for sentence in logs.corruption:
        terminal.warn(f"{sentence} What is there is shown.")


def tail_logs(
    terminal: Terminal,
    ledger: Ledger,
    record: JobRecord,
    query: LineFilter,
    shown: LogDisplayOptions,
    *,
    writer: TextWriter = write_stdout,
) -> JobState:
    """Print the job's lines until the job is over, then how it ended."""
    from prefect_bt.cli.logs.lines import deduplicate, write_lines

    with detach_on_interrupt(terminal, record.id):
        looks = deduplicate(follow(terminal, ledger, record, query, shown), shown.deduplicator)
        write_lines(
            looks,
            as_json=shown.as_json,
            use_color=shown.use_color,
            raw=shown.raw,
            writer=writer,
        )
        return print_job_end(terminal, ledger, record.id)


def wait_for_job(terminal: Terminal, ledger: Ledger, record: JobRecord) -> JobState:
    """Until the job is over; says how it ended."""
    from prefect_bt.jobs import stop

    with detach_on_interrupt(terminal, record.id):
        with terminal.spinner(f"Waiting for job {record.id} to end"):
            stop.wait_for_end(ledger, record.id)
        state = print_job_end(terminal, ledger, record.id)
    if state in FAILED_STATES:
        terminal.info(f"  Logs:    prefect-bt logs --job-id {record.id}")
    return state


def print_job_end(terminal: Terminal, ledger: Ledger, job_id: str) -> JobState:
    """One line about a job that is over, and its error if it has one."""
    last = ledger.list_events(job_id)[-1]
    words, style = END_MESSAGES.get(last.state, ("Training job {id} goes on.", ""))
    terminal.info(words.format(id=job_id), style=style)
    if last.message and last.state in FAILED_STATES:
        terminal.info(last.message)
    return last.state


def exit_code(state: JobState) -> int:
    """Of a command that waited: 0 for COMPLETED only."""
    return OK if state is JobState.COMPLETED else FAILED


@contextmanager
def detach_on_interrupt(terminal: Terminal, job_id: str) -> Generator[None]:
    """Ctrl-C inside leaves the job running and says so."""
    try:
        yield
    except KeyboardInterrupt:
        terminal.info("")
        terminal.warn(f"Training job {job_id} goes on without you.")
        terminal.info(f"  Follow it again:  prefect-bt logs --job-id {job_id} --tail")
        terminal.info(f"  Stop it:          prefect-bt stop --job-id {job_id}")
        raise


def _make_reconciler(terminal: Terminal, ledger: Ledger, job_id: str) -> Callable[[], None]:
    from prefect_bt.jobs import stop

    checked, warned = time.monotonic(), False

    def settle() -> None:
        nonlocal checked, warned
        if time.monotonic() - checked < RECONCILE_INTERVAL:
            return
        checked = time.monotonic()
        try:
            stop.reconcile_job(ledger, job_id)
        except PrefectBtError as error:
            # Following must not end because the nodes cannot be seen from here.
            if not warned:
                terminal.warn(f"Whether job {job_id} still runs cannot be seen from here: {error}")
            warned = True

    return settle
