"""Write the lines of a job as text or JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Container, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

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


class TextStream(Protocol):
    """Target of log lines: standard output, or the stream above a live panel."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


def should_use_color() -> bool:
    """Return whether lines have the color of their level: on a terminal without NO_COLOR."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def deduplicate(
    found: Iterable[JobLine | None], deduplicator: LineDeduplicator | None
) -> Iterator[JobLine | DeduplicatedLine | None]:
    """Yield the lines, deduplicated if asked for. None means that no more lines are ready."""
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
    """Return a deduplicator, or None to show every line.

    `fold`: the option; None deduplicates on a terminal if several ranks are shown. `documents`:
    standard output has a document.
    """
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
    stream: TextStream | None = None,
) -> int:
    """Write each item as a line, flush when no more are ready, and return the number of lines.

    `raw`: keep the control characters of the job's output.
    """
    target = stream or sys.stdout
    as_line = format_raw if raw else format_colored if use_color else format_text
    written, render = 0, format_json if as_json else as_line
    for line in shown:
        if line is None:
            target.flush()
            continue
        written += 1
        target.write(f"{render(line)}\n")
    target.flush()
    return written


def write_document(shown: Iterable[JobLine | DeduplicatedLine | None], **facts: Any) -> None:
    """Write `{<facts>, "logs": [...]}` line by line: a log can be larger than memory."""
    head = "".join(f"{json.dumps(name)}: {json.dumps(value)}, " for name, value in facts.items())
    write_stdout(f'{{{head}"logs": [')
    separator = "\n"
    for line in shown:
        if line is not None:
            write_stdout(f"{separator}  {format_json(line)}")
            separator = ",\n"
    write_stdout("\n]}\n" if separator != "\n" else "]}\n")


def format_text(shown: JobLine | DeduplicatedLine) -> str:
    """Render a line without control characters other than colors."""
    return escape_line_controls(format_raw(shown))


def format_raw(shown: JobLine | DeduplicatedLine) -> str:
    """Render a line with the control characters of the job's own output."""
    folded_ranks = shown.ranks if isinstance(shown, DeduplicatedLine) else ()
    return render_line(shown.line, replica=format_ranks_label(folded_ranks) if folded_ranks else "")


def format_colored(shown: JobLine | DeduplicatedLine) -> str:
    """Render a line in the color of its level."""
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
