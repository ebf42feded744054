"""A job's lines as they are printed: text or JSON, folded or each by itself."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from prefect_bt.cli.ui.terminal import to_json, write_stdout
from prefect_bt.logs.deduplication import DeduplicatedLine, LineDeduplicator
from prefect_bt.logs.levels import LogLevel
from prefect_bt.logs.line_format import PLATFORM_RANK, render_line
from prefect_bt.text.control_characters import escape_line_controls
from prefect_bt.text.ranks import format_ranks_label

if TYPE_CHECKING:
    from prefect_bt.ledger.records import JobRecord
    from prefect_bt.logs.job_reader import JobLine

_LEVEL_COLORS: Final = {LogLevel.DEBUG: "2", LogLevel.WARNING: "33", LogLevel.ERROR: "31"}
_PLATFORM_COLOR: Final = "36"


def should_use_color() -> bool:
    """Whether lines are shown in the colour of their level: on a terminal, without NO_COLOR."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def deduplicate(
    found: Iterable[JobLine | None], deduplicator: LineDeduplicator | None
) -> Iterator[JobLine | DeduplicatedLine | None]:
    """The lines through the folder, if there is one; a None (nothing more for now) stays one."""
    if deduplicator is None:
        yield from found
        return
    try:
        for line in found:
            yield from deduplicator.expire() if line is None else deduplicator.add(line)
            if line is None:
                yield None
    except KeyboardInterrupt:
        yield from deduplicator.flush()
        raise
    yield from deduplicator.flush()


def choose_deduplicator(
    record: JobRecord,
    *,
    ranks: Container[int] | None = None,
    fold: bool | None = None,
    documents: bool = False,
) -> LineDeduplicator | None:
    """None where lines are shown each by itself. `fold` None: as suits standard output, which is
    for a document where `documents` says so."""
    compute = record.definition.get("job", {}).get("compute", {})
    shown = [n for n in range(compute.get("node_count", 1)) if ranks is None or n in ranks]
    if fold is None:
        fold = sys.stdout.isatty() and not documents and len(shown) > 1
    return LineDeduplicator(shown, clock=time.monotonic) if fold else None


def write_lines(
    shown: Iterable[JobLine | DeduplicatedLine | None],
    *,
    as_json: bool,
    use_color: bool = False,
    raw: bool = False,
    writer: Callable[[str], object] = write_stdout,
) -> int:
    """Write each item as a line, flushed whenever no more are ready; return their number.

    `raw`: with every character of a job's lines as it was printed, for a file or another program.
    """
    as_line = format_raw if raw else format_colored if use_color else format_text
    written, render = 0, format_json if as_json else as_line
    for line in shown:
        if line is None:
            sys.stdout.flush()
            continue
        written += 1
        writer(f"{render(line)}\n")
    sys.stdout.flush()
    return written


def write_document(shown: Iterable[JobLine | DeduplicatedLine | None], **facts: Any) -> None:
    """`{<facts>, "logs": [...]}`, written as it is read: a log may be larger than memory."""
    head = "".join(f"{json.dumps(name)}: {json.dumps(value)}, " for name, value in facts.items())
    write_stdout(f'{{{head}"logs": [')
    separator = "\n"
    for line in shown:
        if line is not None:
            write_stdout(f"{separator}  {format_json(line)}")
            separator = ",\n"
    write_stdout("\n]}\n" if separator != "\n" else "]}\n")


def format_text(shown: JobLine | DeduplicatedLine) -> str:
    """Render a line for a terminal, now or later: only colours have an effect there."""
    return escape_line_controls(format_raw(shown))


def format_raw(shown: JobLine | DeduplicatedLine) -> str:
    """Render a line with the control characters of the job's own output."""
    folded_ranks = shown.ranks if isinstance(shown, DeduplicatedLine) else ()
    return render_line(shown.line, replica=format_ranks_label(folded_ranks) if folded_ranks else "")


def format_colored(shown: JobLine | DeduplicatedLine) -> str:
    """`format_text` in the colour of its level, for a terminal; without a level as it is."""
    text = format_text(shown)
    usual = _PLATFORM_COLOR if shown.line.rank == PLATFORM_RANK else ""
    colour = usual if shown.level is None else _LEVEL_COLORS.get(shown.level, usual)
    return f"\x1b[{colour}m{text}\x1b[0m" if colour else text


def format_json(shown: JobLine | DeduplicatedLine) -> str:
    """Render a line as JSON with its attempt; a deduplicated line with all of its ranks."""
    fields: dict[str, Any] = {
        "timestamp": str(shown.line.timestamp),
        "message": shown.line.message,
        "replica": shown.line.replica,
        "level": shown.level.name if shown.level is not None else None,
        "attempt": shown.attempt,
    }
    if isinstance(shown, DeduplicatedLine):
        fields["ranks"] = list(shown.ranks)
        if shown.ranks:
            fields["replica"] = format_ranks_label(shown.ranks)
    return to_json(fields)
