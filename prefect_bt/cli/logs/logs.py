"""`prefect-bt logs`: print or follow the log of a job, or show why it failed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, Token

from prefect_bt.cli.jobs.selection import get_reconciled_state, select_job
from prefect_bt.cli.logs import follow, lines
from prefect_bt.cli.ui.options import (
    NO_FILTER,
    InjectedTerminal,
    JobFilter,
    Output,
    PositiveCount,
    Tail,
)
from prefect_bt.cli.ui.terminal import OK, Terminal, write_stdout
from prefect_bt.errors import UsageError
from prefect_bt.logs.levels import LogLevel, parse_level
from prefect_bt.text.control_characters import escape_controls
from prefect_bt.text.durations import parse_since
from prefect_bt.text.number_ranges import NumberRanges, parse_number_ranges

if TYPE_CHECKING:
    from prefect_bt.ledger.ledger import Ledger
    from prefect_bt.ledger.records import JobRecord
    from prefect_bt.logs.job_reader import JobLogs
    from prefect_bt.logs.line_filter import JobLine, LineFilter


def _convert_time(_: object, tokens: Sequence[Token]) -> int:
    return parse_since(tokens[0].value, now=time.time())


def _convert_level(_: object, tokens: Sequence[Token]) -> LogLevel:
    return parse_level(tokens[0].value)


def _convert_pattern(_: object, tokens: Sequence[Token]) -> re.Pattern[str]:
    try:
        return re.compile(tokens[0].value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None


_TIME = Parameter(converter=_convert_time, metavar="TIME")
_REGEX = Parameter(converter=_convert_pattern, metavar="REGEX")


def _validate_ranges(_: object, texts: Sequence[str]) -> None:
    parse_number_ranges(texts)


def logs(
    *,
    which: JobFilter = NO_FILTER,
    tail: Tail = False,
    rank: Annotated[tuple[str, ...], Parameter(validator=_validate_ranges)] = (),
    attempt: Annotated[
        tuple[str, ...], Parameter(validator=_validate_ranges, allow_leading_hyphen=True)
    ] = (),
    since: Annotated[int, _TIME, Parameter(name=["--since", "--start"])] = 0,
    end: Annotated[int | None, _TIME] = None,
    limit: PositiveCount = None,
    min_level: Annotated[LogLevel | None, Parameter(converter=_convert_level)] = None,
    grep: Annotated[re.Pattern[str] | None, _REGEX] = None,
    first_failure: bool = False,
    platform: Annotated[bool, Parameter(negative="--no-platform")] = True,
    raw: bool = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Print the lines of all ranks, merged by time; default: the newest job.

    With --tail, a terminal shows a panel with the state of the job below its log, and `-o json`
    prints one JSON object per line.

    Args:
        rank: Only these ranks: `3` or `0,2-5`. Repeatable.
        attempt: Only these attempts: `0` is the first, `-1` the last. Repeatable.
        since: Only lines since this age or time: `30m`, `2h`, `1d`, or ISO 8601; UTC without a
            zone.
        end: Only lines until this age or time.
        limit: Only the newest N lines; with --tail, the newest N before following.
        min_level: Only lines of at least this level: debug, info, warning, error. The level is
            detected in the text; lines without one are left out.
        grep: Only lines that match this regular expression.
        first_failure: Show why the newest failed attempt (or --attempt N) failed: its outcome, and
            the last lines of the rank that failed first.
        platform: Print the lines of the platform: what the job waits for, attempts, its end.
            --rank leaves them out.
        raw: Keep the control characters of the job's output, for a file or another program.

    Examples:

    `prefect-bt logs --job-id abc1234 --tail`

    `prefect-bt logs --rank 0,2-5 --since 10m --grep "loss|error"`

    `prefect-bt logs --min-level warning --limit 100`

    `prefect-bt logs --first-failure`
    """
    from prefect_bt.ledger.open_ledger import open_ledger
    from prefect_bt.logs.line_filter import LineFilter
    from prefect_bt.logs.open_logs import open_logs
    from prefect_bt.settings import Settings

    chosen = parse_number_ranges(attempt)
    if first_failure:
        given = {"since": since, "end": end, "limit": limit, "min-level": min_level}
        _reject_combined_options(tail=tail, rank=rank, grep=grep, **given)
    if tail and end is not None:
        raise UsageError("--tail and --end exclude each other.", next_step="Give one of them.")
    ledger = open_ledger()
    record = select_job(ledger, which, terminal)
    get_reconciled_state(ledger, record.id, terminal)
    if not terminal.machine_readable:
        lines.name_time_zone()
    if first_failure:
        _print_first_failure(terminal, ledger, record, chosen, raw=raw)
        return OK
    colored = lines.should_use_color() and not (raw or terminal.machine_readable)
    query = LineFilter(
        ranks=parse_number_ranges(rank),
        attempts=chosen.resolve_negative(max(1, len(ledger.list_attempts(record.id))))
        if chosen
        else None,
        since=since,
        pattern=grep,
        until=end,
        min_level=min_level,
        levels=terminal.machine_readable or colored,
    )
    opened = open_logs(ledger, record, Settings().state_dir, platform=platform)
    as_text = lines.format_raw if raw else lines.format_colored if colored else lines.format_text
    if tail:
        format_line = lines.format_json if terminal.machine_readable else as_text
        panel = not (raw or terminal.machine_readable)
        follow.tail_logs(terminal, opened, query, format_line, limit=limit, panel=panel)
    else:
        _print_all(terminal, opened, query, as_text, limit=limit)
    return OK


def _print_all(
    terminal: Terminal,
    logs: JobLogs,
    query: LineFilter,
    format_line: Callable[[JobLine], str],
    *,
    limit: int | None,
) -> None:
    job_id = logs.record.id
    every = logs.read_new(query, include_partial=True)
    found = every if limit is None else logs.read_newest(query, limit)
    if terminal.machine_readable:
        lines.write_document(found, job_id=job_id)
    elif not lines.write_lines(found, format_line):
        state = logs.ledger.get_state(job_id)
        terminal.warn(f"No log lines of job {job_id} ({state.value}) match.")
    follow.warn_corrupt_logs(terminal, logs)


def _print_first_failure(
    terminal: Terminal, ledger: Ledger, record: JobRecord, chosen: NumberRanges | None, *, raw: bool
) -> None:
    from prefect_bt.logs.first_failure import read_first_failure
    from prefect_bt.logs.line_filter import JobLine

    attempt = chosen.single if chosen else None
    if chosen and attempt is None:
        raise UsageError("--first-failure shows one attempt.", next_step="Give one: --attempt 0.")
    why = read_first_failure(ledger, record, attempt)
    outcome = why.outcome
    found = [JobLine(outcome.attempt, line) for line in why.lines]
    if terminal.machine_readable:
        lines.write_document(
            found,
            job_id=record.id,
            attempt=outcome.attempt,
            failed_rank=outcome.failed_rank,
            failure=outcome.failure.value if outcome.failure else None,
            exit_code=outcome.exit_code,
            message=outcome.message,
        )
        return
    write_stdout(escape_controls(f"Attempt {outcome.attempt}: {outcome.message}") + "\n")
    lines.write_lines(found, lines.format_raw if raw else lines.format_text)


def _reject_combined_options(**others: object) -> None:
    given = [f"--{name}" for name, value in others.items() if value not in (False, (), 0, None)]
    if given:
        raise UsageError(
            f"--first-failure cannot be combined with {' and '.join(given)}.",
            next_step="Leave one of them out.",
        )
