"""`prefect-bt queue`: show the jobs that wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Final

from prefect_bt.cli.jobs.selection import open_jobs
from prefect_bt.cli.ui.options import InjectedTerminal, Output, Remote, Watch
from prefect_bt.cli.ui.tables import Column, Document, format_time, show_table
from prefect_bt.cli.ui.terminal import Terminal, format_count
from prefect_bt.job_service.protocol import JobService
from prefect_bt.job_service.store_service import StoreJobs
from prefect_bt.text.quantities import format_elapsed

_LIMIT: Final = 50
"""Jobs that are shown unless --all is given."""
_SOON: Final = 3600.0
"""Seconds before a start from which on they are shown instead of the time."""


def queue(
    *,
    all: bool = False,
    watch: Watch = False,
    output: Output = "cli-table",
    remote: Remote = None,
    terminal: InjectedTerminal,
) -> int:
    """List the first job of the queue first: it starts when a machine has room for it.

    A higher priority comes first; of two jobs with the same priority, the older one. The start of
    a job can be estimated if the jobs before it have a maximum run time.

    Args:
        all: Show all jobs; default: the first 50. JSON always has all.

    Examples:

    `prefect-bt queue`

    `prefect-bt queue --watch`

    `prefect-bt queue -o json`
    """
    jobs = open_jobs(terminal, remote)
    if isinstance(jobs, StoreJobs):
        jobs.put_back_lost_jobs()
    read = partial(_read, terminal, jobs, all=all)
    if watch:
        terminal.watch(read)
    return terminal.print_result(*read())


def _read(
    terminal: Terminal, jobs: JobService, *, all: bool
) -> tuple[list[Document], Callable[[], None]]:
    """Return the document and a function that prints it as a table."""
    document = jobs.read_queue(0 if terminal.machine_readable else None if all else _LIMIT)
    waiting, names = document["jobs"], document["names"]
    if not waiting:
        return waiting, lambda: terminal.echo("No job waits.")
    rows = [{**one, **names[one["id"]]} for one in waiting if one["id"] in names]
    return waiting, lambda: _show(terminal, rows, len(waiting))


def _show(terminal: Terminal, rows: Sequence[Document], total: int) -> None:
    columns = [one for one in _COLUMNS if one is not _TEAM or any(row["team"] for row in rows)]
    show_table(terminal, "Queue", columns, rows)
    if len(rows) < total:
        more = format_count(total - len(rows), "more job")
        terminal.warn(f"{more} wait{'s' if total - len(rows) == 1 else ''}. All: --all.")


def _format_needs(row: Document) -> str:
    """Return `8 H100`, or `2 CPUs, 12 GiB` of a job without GPUs."""
    from prefect_bt.planning.resource_amounts import format_memory  # JSON does not need it

    if row["gpus"]:
        return f"{row['gpus']} {row['gpu_type'] or 'GPU'}"
    return f"{format_count(row['cpus'], 'CPU')}, {format_memory(row['memory'])}"


def _format_waiting(since: str) -> str:
    return format_elapsed(max(0.0, time.time() - datetime.fromisoformat(since).timestamp()))


def _format_start(iso: str | None) -> str:
    """Return `in 12 min`, or the time of a start that is more than an hour away."""
    left = datetime.fromisoformat(iso).timestamp() - time.time() if iso else _SOON
    return format_time(iso) if left >= _SOON else f"in {max(1, round(left / 60))} min"


_TEAM: Final = Column("Team", "team", hide=6)
_COLUMNS: Final = [
    Column("Place", "place"),
    Column("Job ID", "id"),
    Column("Job Name", "name", wrap=True, hide=5),
    Column("Project", "project", wrap=True, hide=4),
    _TEAM,
    Column("Needs", "", _format_needs),
    Column("Capacity Type", "spot", lambda spot: "Spot" if spot else "On-demand", hide=2),
    Column("Priority", "priority", hide=1),
    Column("Waits For", "waiting_for", wrap=True),
    Column("Waiting", "since", _format_waiting, hide=3),
    Column("Starts", "starts_at", _format_start),
]
