"""`prefect-bt logs`: print or follow the log of a job, or show why it failed."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter, Token

from prefect_bt.cli.jobs.selection import open_jobs, select_project
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
from prefect_bt.job_service.protocol import JobService, LogQuery
from prefect_bt.logs.levels import LogLevel, parse_level
from prefect_bt.logs.line_filter import JobLine
from prefect_bt.logs.line_format import LogLine
from prefect_bt.text.control_characters import escape_controls
from prefect_bt.text.durations import parse_since
from prefect_bt.text.number_ranges import parse_number_ranges


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
    if first_failure:
        given = {"since": since, "end": end, "limit": limit, "min-level": min_level}
        _reject_combined_options(tail=tail, rank=rank, grep=grep, **given)
    if tail and end is not None:
        raise UsageError("--tail and --end exclude each other.", next_step="Give one of them.")
    jobs = open_jobs(terminal, which.remote)
    job_id = jobs.find_job(which.job_id, select_project(which, terminal)).id
    if not terminal.machine_readable:
        lines.name_time_zone()
    if first_failure:
        _print_first_failure(terminal, jobs, job_id, attempt, raw=raw)
        return OK
    colored = lines.should_use_color() and not (raw or terminal.machine_readable)
    query = LogQuery(
        rank=rank,
        attempt=attempt,
        since=since,
        pattern=grep,
        until=end,
        min_level=min_level,
        levels=terminal.machine_readable or colored,
        limit=limit,
        platform=platform,
        follow=tail,
    )
    as_text = lines.format_raw if raw else lines.format_colored if colored else lines.format_text
    if tail:
        format_line = lines.format_json if terminal.machine_readable else as_text
        panel = not (raw or terminal.machine_readable)
        follow.tail_logs(terminal, jobs, job_id, query, format_line, panel=panel)
        return OK
    selected = jobs.read_lines(job_id, query)
    if terminal.machine_readable:
        lines.write_document(selected, job_id=job_id)
    elif not lines.write_lines(selected, as_text):
        state = jobs.read_end(job_id)["state"]
        terminal.warn(f"No log lines of job {job_id} ({state}) match.")
    return OK


def _print_first_failure(
    terminal: Terminal, jobs: JobService, job_id: str, given: Sequence[str], *, raw: bool
) -> None:
    chosen = parse_number_ranges(given)
    attempt = chosen.single if chosen else None
    if chosen and attempt is None:
        raise UsageError("--first-failure shows one attempt.", next_step="Give one: --attempt 0.")
    why = jobs.read_first_failure(job_id, attempt)
    found = [JobLine(why["attempt"], LogLine(*line)) for line in why.pop("lines")]
    if terminal.machine_readable:
        lines.write_document(found, job_id=job_id, **why)
        return
    write_stdout(escape_controls(f"Attempt {why['attempt']}: {why['message']}") + "\n")
    lines.write_lines(found, lines.format_raw if raw else lines.format_text)


def _reject_combined_options(**others: object) -> None:
    given = [f"--{name}" for name, value in others.items() if value not in (False, (), 0, None)]
    if given:
        raise UsageError(
            f"--first-failure cannot be combined with {' and '.join(given)}.",
            next_step="Leave one of them out.",
        )
