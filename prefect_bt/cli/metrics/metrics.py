"""`prefect-bt metrics`: show what the nodes of a job use, and how its training goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from prefect_bt.cli.jobs.selection import get_reconciled_state, select_job
from prefect_bt.cli.ui.options import NO_FILTER, InjectedTerminal, JobFilter, SinceTime, TableOutput
from prefect_bt.cli.ui.tables import Column, print_csv
from prefect_bt.cli.ui.terminal import OK

if TYPE_CHECKING:
    from prefect_bt.job_metrics.job_metrics import JobMetrics

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
    from prefect_bt.job_metrics.document import list_rows
    from prefect_bt.job_metrics.job_metrics import JobMetricsReader
    from prefect_bt.job_metrics.pictures import save_picture
    from prefect_bt.job_metrics.series import choose_window
    from prefect_bt.jobs.metrics.view import read_cache, read_document
    from prefect_bt.ledger.open_ledger import open_ledger
    from prefect_bt.settings import Settings

    ledger = open_ledger()
    record = select_job(ledger, which, terminal)
    reader = JobMetricsReader(ledger, record, Settings().state_dir)
    current: JobMetrics | None = None

    def read() -> tuple[Any, Callable[[], None]]:
        """Return the document, or what the tables are of, and a function that prints it."""
        nonlocal current
        get_reconciled_state(ledger, record.id, terminal)
        current = latest = reader.read(follow=watch)
        if picture is not None:
            save_picture(latest, picture, since=since)
        if output == "json":
            window = choose_window(latest, since=since)
            return read_document(ledger, latest, window=window), lambda: None
        if output == "csv":
            return latest, lambda: print_csv(_CSV, list_rows(latest, since=since))
        cache = read_cache(ledger, record)
        return latest, lambda: show_metrics(terminal, latest, cache, since=since)

    if not watch:
        return terminal.print_result(*read())
    with detach_on_interrupt(terminal, record.id):
        terminal.watch(
            read,
            interval=WATCH_INTERVAL,
            has_ended=lambda: current is not None and current.history.ended_at is not None,
        )
        print_job_end(terminal, ledger, record.id)
    return OK
