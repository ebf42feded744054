"""`prefect-bt metrics`: show what the nodes of a job use, and how its training goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from prefect_bt.cli.jobs.selection import open_jobs, select_project
from prefect_bt.cli.ui.options import NO_FILTER, InjectedTerminal, JobFilter, SinceTime, TableOutput
from prefect_bt.cli.ui.tables import Column, print_csv
from prefect_bt.cli.ui.terminal import OK
from prefect_bt.errors import UsageError

if TYPE_CHECKING:
    from prefect_bt.job_service.protocol import JobService

WATCH_INTERVAL: Final = 5.0
"""Seconds between two reads of --watch."""
_CSV: Final = [
    Column(name, name) for name in ("timestamp", "attempt", "rank", "series", "step", "value")
]


def metrics(
    *,
    which: JobFilter = NO_FILTER,
    watch: Annotated[bool, Parameter(name=["--watch", "-w"])] = False,
    since: SinceTime = None,
    picture: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    output: TableOutput = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Show CPUs, memory, disk, network and GPUs of each node, and the values of the training.

    Default: the newest job. The values are those of the newest attempt; `-o json` and `-o csv` have
    all attempts.

    Args:
        watch: Show the metrics again every 5 seconds until the job ends.
        since: Only samples since this age or time: `30m`, `2h`, `1d`, or ISO 8601; UTC without a
            zone. Default: the whole job.
        picture: Write curves and resources to this .svg or .png file as well; needs
            `pip install "prefect-bt[pictures]"`.

    Examples:

    `prefect-bt metrics --job-id abc1234`

    `prefect-bt metrics --watch`

    `prefect-bt metrics --since 1h -o json`

    `prefect-bt metrics --job-id abc1234 --picture curves.svg`
    """
    from prefect_bt.cli.logs.follow import detach_on_interrupt, print_job_end
    from prefect_bt.cli.metrics.tables import show_metrics

    jobs = open_jobs(terminal, which.remote)
    job_id = jobs.find_job(which.job_id, select_project(which, terminal)).id
    ended = False

    def read() -> tuple[Any, Callable[[], None]]:
        """Return the document, or what the tables are of, and a function that prints it."""
        nonlocal ended
        found = jobs.read_metrics(job_id, output, since=since, follow=watch)
        ended, result = found["ended"], found["result"]
        if picture is not None:
            _save_picture(jobs, job_id, picture, since)
        if output == "csv":
            return result, lambda: print_csv(_CSV, result)
        return result, lambda: show_metrics(terminal, result)

    if not watch:
        return terminal.print_result(*read())
    with detach_on_interrupt(terminal, jobs, job_id):
        terminal.watch(read, interval=WATCH_INTERVAL, has_ended=lambda: ended)
        print_job_end(terminal, jobs, job_id)
    return OK


def _save_picture(jobs: JobService, job_id: str, target: Path, since: float | None) -> None:
    from prefect_bt.job_metrics.job_metrics import JobMetricsReader
    from prefect_bt.job_metrics.pictures import save_picture
    from prefect_bt.settings import Settings

    ledger = jobs.ledger
    if ledger is None:
        raise UsageError(
            f"--picture does not work through {jobs.url}.",
            next_step="Use -o csv, and draw the values.",
        )
    reader = JobMetricsReader(ledger, ledger.get_job(job_id), Settings().state_dir)
    save_picture(reader.read(), target, since=since)
