"""`prefect-bt logs`: a job's lines, all of them or as they come."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, Token

from prefect_bt.cli import attach
from prefect_bt.cli.options import NO_FILTER, Here, JobFilter, Output, Tail
from prefect_bt.cli.selection import newest_job, settled_state
from prefect_bt.cli.terminal import OK, Terminal, write
from prefect_bt.logs import render_line

if TYPE_CHECKING:
    from prefect_bt.joblogs import JobLine, LineFilter
    from prefect_bt.ledger import Ledger
    from prefect_bt.records import JobRecord

_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_since(text: str, *, now: float) -> int:
    """`30m`, `2h`, `1d`, `45s` ago, or an ISO time, as epoch nanoseconds. Raises ValueError."""
    match = _AGE.fullmatch(text.strip())
    if match:
        return int((now - float(match[1]) * _SECONDS[match[2]]) * 1e9)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1e9)
    except ValueError:
        raise ValueError("write for example 30m, 2h, 1d or 2026-11-20T14:00") from None


def _since(_: object, tokens: Sequence[Token]) -> int:
    return parse_since(tokens[0].value, now=time.time())


def _pattern(_: object, tokens: Sequence[Token]) -> re.Pattern[str]:
    try:
        return re.compile(tokens[0].value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None


def logs(
    *,
    which: JobFilter = NO_FILTER,
    tail: Tail = False,
    rank: Annotated[
        tuple[int, ...], Parameter(help="Only this node rank; may be given several times.")
    ] = (),
    attempt: Annotated[
        tuple[int, ...], Parameter(help="Only this attempt (0 is the first); several as --rank.")
    ] = (),
    since: Annotated[
        int,
        Parameter(converter=_since, help="Only lines since `30m`, `2h`, `1d` ago or an ISO time."),
    ] = 0,
    grep: Annotated[
        re.Pattern[str] | None,
        Parameter(converter=_pattern, help="Only lines in which this regular expression is found."),
    ] = None,
    output: Output = "cli-table",
    terminal: Here,
) -> int:
    """Print the log of a job, by default the newest one's.

    Lines of all ranks are merged by time. With --tail, `-o json` prints one object a line.

    `prefect-bt logs --job-id abc1234 --tail`

    `prefect-bt logs --rank 0 --since 10m --grep "loss|error"`
    """
    from prefect_bt.joblogs import LineFilter
    from prefect_bt.jobs import open_ledger

    ledger, beside = open_ledger(), terminal.beside(output)
    record = newest_job(ledger, which, beside)
    query = LineFilter(
        ranks=frozenset(rank) or None,
        attempts=frozenset(attempt) or None,
        since=since,
        pattern=grep,
    )
    settled_state(ledger, record.id, beside)
    if tail:
        _follow(beside, ledger, record, query)
    else:
        _print_all(beside, ledger, record, query)
    return OK


def _follow(terminal: Terminal, ledger: Ledger, record: JobRecord, query: LineFilter) -> None:
    with attach.staying(terminal, record.id):
        for found in attach.follow(terminal, ledger, record, query):
            text = _json(found) if terminal.documents else render_line(found.line)
            write(f"{text}\n", flush=True)
        attach.say_end(terminal, ledger, record.id)


def _print_all(terminal: Terminal, ledger: Ledger, record: JobRecord, query: LineFilter) -> None:
    from prefect_bt.joblogs import read_lines

    lines = read_lines(attach.open_logs(ledger, record, terminal), query)
    if terminal.documents:
        _write_document(record.id, lines)
        return
    printed = False
    for found in lines:
        printed = True
        write(f"{render_line(found.line)}\n")
    if not printed:
        state = ledger.state(record.id)
        terminal.warn(f"No log lines of job {record.id} ({state.value}) match.")


def _write_document(job_id: str, lines: Iterator[JobLine]) -> None:
    """`{"job_id", "logs": [...]}`, written as it is read: a log may be larger than memory."""
    write(f'{{"job_id": {json.dumps(job_id)}, "logs": [')
    separator = "\n"
    for found in lines:
        write(f"{separator}  {_json(found)}")
        separator = ",\n"
    write("\n]}\n" if separator != "\n" else "]}\n")


def _json(found: JobLine) -> str:
    """A line as §14 has it, with its attempt."""
    fields: dict[str, Any] = {
        "timestamp": str(found.line.timestamp),
        "message": found.line.message,
        "replica": found.line.replica,
        "attempt": found.attempt,
    }
    return json.dumps(fields)
