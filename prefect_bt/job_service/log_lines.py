"""Read or follow the lines of a job that a query selects."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prefect_bt.errors import StoreError
from prefect_bt.job_service.protocol import LogQuery
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.logs.follow import follow_lines
from prefect_bt.logs.line_filter import JobLine, LineFilter
from prefect_bt.logs.open_logs import open_logs
from prefect_bt.settings import Settings
from prefect_bt.text.number_ranges import parse_number_ranges


def read_lines(
    ledger: Ledger,
    record: JobRecord,
    query: LogQuery,
    *,
    warn: Callable[[str], object],
    sleep: Callable[[float], None],
) -> Iterator[JobLine | None]:
    """Yield the lines, on whichever machine the nodes run, then warn of damaged logs."""
    logs = open_logs(ledger, record, Settings().state_dir, platform=query.platform)
    attempts = parse_number_ranges(query.attempt)
    lines = LineFilter(
        ranks=parse_number_ranges(query.rank),
        attempts=attempts.resolve_negative(max(1, len(ledger.list_attempts(record.id))))
        if attempts
        else None,
        since=query.since,
        pattern=query.pattern,
        until=query.until,
        min_level=query.min_level,
        levels=query.levels,
    )

    def warn_of_outage(error: StoreError) -> None:
        warn(f"The log continues when the store answers again: {error}")

    if query.follow:
        from prefect_bt.jobs.reconcile import Reconciler  # slow to import

        yield from follow_lines(
            logs,
            lines,
            limit=query.limit,
            sleep=sleep,
            refresh=Reconciler(ledger, record.id, warn=warn),
            on_outage=warn_of_outage,
        )
    elif query.limit is not None:
        yield from logs.read_newest(lines, query.limit)
    else:
        yield from logs.read_new(lines, include_partial=True)
    for sentence in logs.corruption:
        warn(f"{sentence} The lines that can be read are shown.")
