"""What a command may do to the terminal it runs in: say, warn, ask, show that it works.

Results go to standard output, everything else to standard error. When a command prints a document
(JSON, csv), its own words go to standard error too, so that standard output can be parsed. Rich is
imported when something is printed with it, so that commands that only copy lines start faster.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from prefect_bt.text.control_characters import escape_controls

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130

_PLAIN_WIDTH: Final = 10_000
"""Columns of output that goes to a file or a pipe: nothing is cut or wrapped there."""


@dataclass(frozen=True)
class Terminal:
    """`interactive`: somebody can be asked.

    `machine_readable`: standard output is for a document.
    """

    interactive: bool
    debug: bool = False
    machine_readable: bool = False

    @cached_property
    def out(self) -> Console:
        """Where a command's words go."""
        return self.err if self.machine_readable else _console(stderr=False)

    @cached_property
    def err(self) -> Console:
        return _console(stderr=True)

    def for_output(self, output: str) -> Terminal:
        """The terminal for a command that prints in the format `output`."""
        return replace(self, machine_readable=output != "cli-table")

    def show(self, renderable: RenderableType) -> None:
        """A table; without blanks at the ends of its lines where that is plain text."""
        if self.out.is_terminal:
            self.out.print(renderable)
            return
        with self.out.capture() as captured:
            self.out.print(renderable)
        for line in captured.get().splitlines():
            self.echo(line.rstrip())

    def echo(self, text: str = "", *, style: str = "") -> None:
        """A line of the command's result."""
        _print_line(self.out, text, style)

    def info(self, text: str, *, style: str = "") -> None:
        """A line beside the result."""
        _print_line(self.err, text, style)

    def warn(self, text: str) -> None:
        self.info(text, style="yellow")

    def error(self, text: str) -> None:
        """`error: <text>`, the label red on a terminal."""
        from rich.text import Text

        said = Text.assemble(("error:", "bold red"), f" {escape_controls(text)}")
        self.err.print(said, soft_wrap=True)

    def print_json(self, value: Any) -> None:
        """`value` as JSON, ASCII only: all that standard output gets."""
        write_stdout(to_json(value, indent=2) + "\n")

    def confirm(self, question: str) -> bool:
        """Yes when nobody can be asked; no when the answer is empty."""
        if not self.interactive:
            return True
        self.err.print(f"{escape_controls(question)} [y/N] ", end="")
        return sys.stdin.readline().strip().lower() in {"y", "yes"}

    @contextmanager
    def spinner(self, text: str) -> Generator[None]:
        """A spinner on a terminal, nothing elsewhere."""
        if not sys.stderr.isatty():
            yield
            return
        with self.err.status(status_text(text)):
            yield


def status_text(text: str) -> Text:
    """Return the text of a spinner; rich would read markup in a plain string."""
    from rich.text import Text

    return Text(escape_controls(text))


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return JSON in ASCII without control characters; json.dumps leaves DEL as it is."""
    return json.dumps(value, indent=indent, default=str).replace("\x7f", "\\u007f")


def csv_cell(value: object) -> str:
    """Return a csv cell: exact for a program, without control characters on a terminal."""
    return escape_controls(str(value)) if sys.stdout.isatty() else str(value)


def write_stdout(text: str, *, flush: bool = False) -> None:
    """Text as it is, on standard output."""
    sys.stdout.write(text)
    if flush:
        sys.stdout.flush()


def format_count(number: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def open_terminal(*, interactive: bool, debug: bool) -> Terminal:
    """The terminal of this process; letters it cannot show become `?`."""
    for stream in (sys.stdout, sys.stderr):
        # A stream that was replaced (a test, a notebook) has no encoding to change.
        with suppress(AttributeError):
            stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    return Terminal(interactive=interactive and _stdin_is_tty(), debug=debug)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    class PlainConsole(Console):
        def on_broken_pipe(self) -> None:
            # Rich would end the process here; main() does it, in one place for all output.
            raise BrokenPipeError

    tty = (sys.stderr if stderr else sys.stdout).isatty()
    return PlainConsole(
        stderr=stderr,
        width=None if tty else _PLAIN_WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )


def _print_line(console: Console, text: str, style: str) -> None:
    console.print(escape_controls(text), style=style or None, soft_wrap=True)


def _stdin_is_tty() -> bool:
    # None where a process was started without one.
    stdin: object = sys.stdin
    return stdin is not None and sys.stdin.isatty()
