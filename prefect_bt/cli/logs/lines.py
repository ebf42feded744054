"""Write the lines of a job as text or JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

from prefect_bt.cli.ui.terminal import result_stream, to_json, write_stdout
from prefect_bt.logs.levels import LogLevel
from prefect_bt.logs.line_format import PLATFORM_RANK, render_line
from prefect_bt.text.control_characters import escape_line_controls

if TYPE_CHECKING:
    from prefect_bt.logs.line_filter import JobLine

_LEVEL_COLORS: Final = {LogLevel.DEBUG: "2", LogLevel.WARNING: "33", LogLevel.ERROR: "31"}
_PLATFORM_COLOR: Final = "36"


class TextStream(Protocol):
    """Target of log lines: standard output, or the stream above a live panel."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


def should_use_color() -> bool:
    """Return whether lines have the color of their level: on a terminal without NO_COLOR."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def name_time_zone() -> None:
    """Print the time zone of the lines to stderr: lines have none, as those of truss."""
    sys.stderr.write("Times are in UTC.\n")  # a Terminal imports rich


def write_lines(
    lines: Iterable[JobLine | None],
    format_line: Callable[[JobLine], str],
    stream: TextStream | None = None,
) -> int:
    """Write each line, flush when no more are ready (None), and return the number of lines."""
    target, written = stream or result_stream(), 0
    for line in lines:
        if line is None:
            target.flush()
            continue
        written += 1
        target.write(f"{format_line(line)}\n")
    target.flush()
    return written


def write_document(shown: Iterable[JobLine | None], **facts: Any) -> None:
    """Write `{<facts>, "logs": [...]}` line by line: a log can be larger than memory."""
    head = "".join(f"{json.dumps(name)}: {json.dumps(value)}, " for name, value in facts.items())
    write_stdout(f'{{{head}"logs": [')
    separator = "\n"
    for line in shown:
        if line is not None:
            write_stdout(f"{separator}  {format_json(line)}")
            separator = ",\n"
    write_stdout("\n]}\n" if separator != "\n" else "]}\n")


def format_text(shown: JobLine) -> str:
    """Render a line without control characters other than colors."""
    return escape_line_controls(render_line(shown.line))


def format_raw(shown: JobLine) -> str:
    """Render a line with the control characters of the job's own output."""
    return render_line(shown.line)


def format_colored(shown: JobLine) -> str:
    """Render a line in the color of its level."""
    text = format_text(shown)
    usual = _PLATFORM_COLOR if shown.line.rank == PLATFORM_RANK else ""
    color = usual if shown.level is None else _LEVEL_COLORS.get(shown.level, usual)
    return f"\x1b[{color}m{text}\x1b[0m" if color else text


def format_json(shown: JobLine) -> str:
    """Render a line as JSON with its attempt."""
    return to_json(
        {
            "timestamp": str(shown.line.timestamp),
            "message": shown.line.message,
            "replica": shown.line.replica,
            "level": shown.level.name if shown.level is not None else None,
            "attempt": shown.attempt,
        }
    )
