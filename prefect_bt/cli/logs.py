"""`prefect-bt logs`: a job's lines, all of them or as they come; or why it failed."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from prefect_bt.cli import attach
from prefect_bt.cli.ages import parse_age
from prefect_bt.cli.numbers import Numbers, parse_numbers
from prefect_bt.cli.options import NO_FILTER, Here, JobFilter, Output, Tail
from prefect_bt.cli.selection import newest_job, settled_state
from prefect_bt.cli.terminal import OK, Terminal, counted, write
from prefect_bt.errors import PrefectBtError
from prefect_bt.loglevels import LogLevel, parse_level
from prefect_bt.visible import visible

if TYPE_CHECKING:
    from prefect_bt.joblogs import LineFilter
    from prefect_bt.ledger import Ledger
    from prefect_bt.records import JobRecord


def parse_since(text: str, *, now: float) -> int:
    """`30m`, `1h30m`, `2d` ago, or an ISO time, as epoch nanoseconds. Raises ValueError."""
    with suppress(ValueError, OverflowError):
        return max(0, int((now - parse_age(text)) * 1e9))
    try:
        return max(0, int(datetime.fromisoformat(text.strip()).timestamp() * 1e9))
    except (ValueError, OverflowError):
        raise ValueError("write for example 30m, 2h, 1d or 2026-11-20T14:00") from None


def _since(_: object, tokens: Sequence[Token]) -> int:
    return parse_since(tokens[0].value, now=time.time())


def _level(_: object, tokens: Sequence[Token]) -> LogLevel:
    return parse_level(tokens[0].value)


def _pattern(_: object, tokens: Sequence[Token]) -> re.Pattern[str]:
    try:
        return re.compile(tokens[0].value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None


def _are_numbers(_: object, texts: Sequence[str]) -> None:
    parse_numbers(texts)


def logs(
    *,
    which: JobFilter = NO_FILTER,
    tail: Tail = False,
    rank: Annotated[
        tuple[str, ...],
        Parameter(
            validator=_are_numbers,
            help="Only these node ranks: `3` or `0,2-5`; may be given several times.",
        ),
    ] = (),
    attempt: Annotated[
        tuple[str, ...],
        Parameter(
            validator=_are_numbers,
            allow_leading_hyphen=True,
            help="Only these attempts: `0` is the first, `-1` the last; several as --rank.",
        ),
    ] = (),
    since: Annotated[
        int,
        Parameter(
            name=["--since", "--start"],
            converter=_since,
            help="Only lines since `30m`, `2h`, `1d` ago or an ISO time.",
        ),
    ] = 0,
    end: Annotated[
        int | None,
        Parameter(converter=_since, help="Only lines until then; as --since."),
    ] = None,
    limit: Annotated[
        int | None,
        Parameter(
            validator=Number(gte=1),
            help="Only so many lines, the newest; with --tail, of those that are there already.",
        ),
    ] = None,
    min_level: Annotated[
        LogLevel | None,
        Parameter(
            converter=_level,
            help="Only lines of at least this level: debug, info, warning or error. Levels are "
            "detected; lines without one are left out.",
        ),
    ] = None,
    grep: Annotated[
        re.Pattern[str] | None,
        Parameter(converter=_pattern, help="Only lines in which this regular expression is found."),
    ] = None,
    first_failure: Annotated[
        bool,
        Parameter(
            help="Only why the newest attempt that failed did (or --attempt N): how it ended, "
            "and the last lines of the rank that failed first."
        ),
    ] = False,
    fold: Annotated[
        bool | None,
        Parameter(
            negative="--no-fold",
            help="Show a line that several ranks print within a second once, with its ranks; "
            "the default on a terminal where more than one rank is shown.",
        ),
    ] = None,
    platform: Annotated[
        bool,
        Parameter(
            negative="--no-platform",
            help="Show the platform's own lines, too: what the job waits for, attempts, its end. "
            "They are left out where --rank chooses nodes.",
        ),
    ] = True,
    raw: Annotated[
        bool,
        Parameter(
            negative="",
            help="Print every character as the job printed it, also those that steer a terminal; "
            "for a file or another program.",
        ),
    ] = False,
    output: Output = "cli-table",
    terminal: Here,
) -> int:
    """Print the log of a job, by default the newest one's.

    Lines of all ranks are merged by time; those of the platform come before and between attempts.
    With --tail, `-o json` prints one object a line.

    `prefect-bt logs --job-id abc1234 --tail`

    `prefect-bt logs --rank 0,2-5 --since 10m --grep "loss|error"`

    `prefect-bt logs --min-level warning --limit 100`

    `prefect-bt logs --first-failure`
    """
    from prefect_bt.cli.loglines import choose_folder, is_coloured
    from prefect_bt.joblogs import LineFilter
    from prefect_bt.jobs import open_ledger

    chosen = parse_numbers(attempt)
    if first_failure:
        given = {"since": since, "end": end, "limit": limit, "min-level": min_level}
        _refuse_beside(tail=tail, rank=rank, grep=grep, fold=fold, **given)
    if tail and end is not None:
        raise PrefectBtError(
            "--tail cannot be combined with --end: it follows the job to its end.",
            next_step="Leave one of them out.",
        )
    ledger, beside = open_ledger(), terminal.beside(output)
    record = newest_job(ledger, which, beside)
    settled_state(ledger, record.id, beside)
    if first_failure:
        _explain(beside, ledger, record, chosen, raw=raw)
        return OK
    ranks = parse_numbers(rank)
    query = LineFilter(
        ranks=ranks,
        attempts=chosen.counted_from(max(1, len(ledger.attempts(record.id)))) if chosen else None,
        since=since,
        pattern=grep,
        until=end,
        min_level=min_level,
        levels=beside.documents or is_coloured(),
    )
    shown = attach.Shown(
        choose_folder(record, ranks=ranks, fold=fold, documents=beside.documents),
        as_json=beside.documents,
        coloured=not raw and not beside.documents and is_coloured(),
        raw=raw,
        platform=platform,
        limit=limit,
    )
    print_lines = attach.tail if tail else _print_all
    print_lines(beside, ledger, record, query, shown)
    return OK


def _print_all(
    terminal: Terminal,
    ledger: Ledger,
    record: JobRecord,
    query: LineFilter,
    shown: attach.Shown,
) -> None:
    from prefect_bt.cli.loglines import folded, write_document, write_lines
    from prefect_bt.joblogs import read_lines

    found = attach.open_logs(ledger, record, terminal, platform=shown.platform)
    limit = shown.limit
    chosen = read_lines(found, query) if limit is None else found.newest(query, limit)
    lines = folded(chosen, shown.folder)
    if terminal.documents:
        write_document(lines, job_id=record.id)
    elif not write_lines(lines, as_json=False, coloured=shown.coloured, raw=shown.raw):
        state = ledger.state(record.id)
        terminal.warn(f"No log lines of job {record.id} ({state.value}) match.")
    attach.say_damage(terminal, found)


def _explain(
    terminal: Terminal, ledger: Ledger, record: JobRecord, chosen: Numbers | None, *, raw: bool
) -> None:
    from prefect_bt.cli.loglines import write_document, write_lines
    from prefect_bt.firstfailure import first_failure
    from prefect_bt.joblogs import JobLine

    why = first_failure(ledger, record, _one_attempt(ledger, record, chosen))
    outcome = why.outcome
    lines = [JobLine(outcome.attempt, line) for line in why.lines]
    if terminal.documents:
        write_document(
            lines,
            job_id=record.id,
            attempt=outcome.attempt,
            failed_rank=outcome.failed_rank,
            failure=outcome.failure.value if outcome.failure else None,
            exit_code=outcome.exit_code,
            message=outcome.message,
        )
        return
    write(visible(f"Attempt {outcome.attempt}: {outcome.message}") + "\n")
    write_lines(lines, as_json=False, raw=raw)


def _one_attempt(ledger: Ledger, record: JobRecord, chosen: Numbers | None) -> int | None:
    """Counted from the first; None where none was chosen."""
    if chosen is None:
        return None
    typed = chosen.single
    if typed is None:
        raise PrefectBtError(
            "--first-failure is about one attempt.", next_step="Give one, as in --attempt 0."
        )
    begun = len(ledger.attempts(record.id))
    meant = chosen.counted_from(begun).single
    if meant is None or meant < 0:
        raise PrefectBtError(
            f"Job {record.id} has no attempt {typed}: {counted(begun, 'attempt')} began.",
            next_step=f"All lines: prefect-bt logs --job-id {record.id}",
        )
    return meant


def _refuse_beside(**others: object) -> None:
    given = [f"--{name}" for name, value in others.items() if value not in (False, (), 0, None)]
    if others["fold"] is False:
        given.append("--no-fold")
    if given:
        raise PrefectBtError(
            f"--first-failure cannot be combined with {' and '.join(given)}.",
            next_step="It shows the last lines of the rank that failed first, as they are.",
        )
