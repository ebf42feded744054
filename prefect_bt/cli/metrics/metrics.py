"""`prefect-bt metrics`: show what the nodes of a job use, and how its training goes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from prefect_bt.cli.jobs.selection import get_reconciled_state, open_job_index, select_job
from prefect_bt.cli.ui.options import NO_FILTER, InjectedTerminal, JobFilter, TableOutput
from prefect_bt.cli.ui.tables import Column, print_csv
from prefect_bt.cli.ui.terminal import OK, Terminal, can_draw, to_json, write_stdout
from prefect_bt.errors import StoreError
from prefect_bt.text.durations import parse_since

if TYPE_CHECKING:
    from prefect_bt.job_metrics.job_metrics import JobMetrics, JobMetricsReader
    from prefect_bt.job_metrics.series import Window
    from prefect_bt.ledger.ledger import Ledger
    from prefect_bt.ledger.records import JobRecord

WATCH_INTERVAL: Final = 5.0
"""Seconds between two tables of --watch."""
_CSV: Final = [
    Column(name, name) for name in ("timestamp", "attempt", "rank", "series", "step", "value")
]


def _convert_time(_: object, tokens: list[Token]) -> float:
    return parse_since(tokens[0].value, now=time.time()) / 1e9


_TIME = Parameter(converter=_convert_time, metavar="TIME")


def metrics(
    *,
    which: JobFilter = NO_FILTER,
    watch: Annotated[bool, Parameter(name=["--watch", "-w"])] = False,
    since: Annotated[float | None, _TIME, Parameter(name=["--since", "--start"])] = None,
    end: Annotated[float | None, _TIME] = None,
    step: Annotated[float | None, Parameter(validator=Number(gte=0), metavar="SECONDS")] = None,
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
        end: Only samples until this age or time.
        step: Seconds between two samples of `-o json` and `-o csv`; 0: every sample. Default: at
            most 500 samples of each series.
        picture: Write curves and resources to this .svg or .png file as well; needs
            `pip install "prefect-bt[pictures]"`.

    Examples:

    `prefect-bt metrics --job-id abc1234`

    `prefect-bt metrics --watch`

    `prefect-bt metrics --since 1h -o json`

    `prefect-bt metrics --job-id abc1234 --picture curves.svg`
    """
    from prefect_bt.job_metrics.job_metrics import JobMetricsReader
    from prefect_bt.job_metrics.series import choose_window
    from prefect_bt.ledger.open_ledger import open_ledger
    from prefect_bt.settings import Settings

    ledger = open_ledger()
    record = select_job(ledger, which, terminal)
    get_reconciled_state(ledger, record.id, terminal)
    reader = JobMetricsReader(ledger, record, Settings().state_dir)

    def show(read: JobMetrics, shown_on: Terminal) -> None:
        window = choose_window(read, since=since, until=end, step=step)
        _show(shown_on, ledger, read, window, on_one_line=watch)
        if picture is not None:
            from prefect_bt.job_metrics.pictures import save_picture

            save_picture(read, picture, window=replace(window, step=None))

    if watch:
        _watch(terminal, ledger, record, reader, show)
    else:
        show(reader.read(), terminal)
    return OK


def _show(
    terminal: Terminal, ledger: Ledger, read: JobMetrics, window: Window, *, on_one_line: bool
) -> None:
    from prefect_bt.job_metrics.document import list_rows, metrics_document

    record = read.history.record
    if terminal.output == "csv":
        print_csv(_CSV, list_rows(read, window))
    elif terminal.output == "json":
        document = metrics_document(
            read,
            window,
            training_job=open_job_index(ledger, terminal).read(record.id),
            cache=_read_cache(ledger, record),
        )
        write_stdout(to_json(document, indent=None if on_one_line else 2) + "\n", flush=True)
    else:
        from prefect_bt.cli.metrics.tables import show_metrics

        show_metrics(terminal, read, window, _read_cache(ledger, record))


def _read_cache(ledger: Ledger, record: JobRecord) -> Any:
    """Return the newest snapshot of the job's training cache, if it has one."""
    from prefect_bt.training_cache.snapshot import read_snapshots

    runtime = record.definition.get("job", {}).get("runtime", {})
    cache: dict[str, Any] = runtime.get("cache_config") or {}
    if not cache.get("enabled"):
        return None
    return next(iter(read_snapshots(ledger.store, record.project_id)), None)


def _watch(
    terminal: Terminal,
    ledger: Ledger,
    record: JobRecord,
    reader: JobMetricsReader,
    show: Callable[[JobMetrics, Terminal], None],
) -> None:
    """Show the metrics again and again until the job has ended, then print how it ended."""
    from prefect_bt.cli.logs.follow import detach_on_interrupt, print_job_end
    from prefect_bt.jobs.reconcile import Reconciler

    reconcile = Reconciler(ledger, record.id, warn=terminal.warn)
    with detach_on_interrupt(terminal, record.id):
        if terminal.machine_readable or not can_draw(sys.stdout):
            _follow(reader, reconcile, terminal.warn, lambda read: show(read, terminal))
        else:
            _draw_in_place(terminal, reader, reconcile, show)
        print_job_end(terminal, ledger, record.id)


def _draw_in_place(
    terminal: Terminal,
    reader: JobMetricsReader,
    reconcile: Callable[[], None],
    show: Callable[[JobMetrics, Terminal], None],
) -> None:
    from rich.live import Live
    from rich.text import Text

    paper = replace(terminal)  # a console of its own, whose output is captured

    with terminal.messages_on_output(), Live(console=terminal.out, auto_refresh=False) as live:

        def draw(read: JobMetrics) -> None:
            with paper.out.capture() as captured:
                show(read, paper)
            live.update(Text.from_ansi(captured.get().rstrip("\n")), refresh=True)

        _follow(reader, reconcile, terminal.warn, draw)


def _follow(
    reader: JobMetricsReader,
    reconcile: Callable[[], None],
    warn: Callable[[str], None],
    show: Callable[[JobMetrics], None],
) -> None:
    """Show what is read until the job has ended. An outage of the store is a warning, once."""
    is_shown = is_out = False
    while True:
        due = time.monotonic() + WATCH_INTERVAL
        try:
            read = reader.read(follow=True)
            show(read)
            is_shown, is_out = True, False
            if read.history.ended_at is not None:
                return
            reconcile()
        except StoreError as error:
            if not is_shown:
                raise
            if not is_out:
                warn(f"The metrics continue when the store answers again: {error}")
            is_out = True
        time.sleep(max(0.0, due - time.monotonic()))
