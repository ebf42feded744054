"""The terminal of a command: print results, messages and errors, ask for confirmation.

Results go to standard output, everything else to standard error. With `-o json` or `-o csv`
standard output has the document alone. Rich is imported on first use: commands that only copy
lines start without it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TextIO

from prefect_bt.errors import PrefectBtError, StoreError, UsageError
from prefect_bt.text.control_characters import escape_controls

if TYPE_CHECKING:
    from rich.console import Console

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2

_WATCH_INTERVAL: Final = 2.0
"""Seconds between two reads of `--watch`."""
_PLAIN_WIDTH: Final = 10_000
"""Columns of a console that writes to a file or a pipe, so that no line is wrapped."""


class CanceledError(PrefectBtError):
    """The user declined a confirmation."""

    def __init__(self) -> None:
        super().__init__("Canceled. Nothing was changed.")


@dataclass(frozen=True)
class Terminal:
    """Output and questions of one command.

    `interactive`: a user can answer questions. `debug`: errors have a traceback.
    `output`: the value of `-o`. `agrees`: every confirmation is given.
    """

    interactive: bool
    debug: bool = False
    output: str = "cli-table"
    agrees: bool = False

    @property
    def machine_readable(self) -> bool:
        """Whether standard output is a document, so that messages go to standard error."""
        return self.output != "cli-table"

    @cached_property
    def out(self) -> Console:
        """The console for text of the result."""
        return self.err if self.machine_readable else _console(stderr=False)

    @cached_property
    def err(self) -> Console:
        return _console(stderr=True)

    def print_result(self, document: Any, show: Callable[[], object]) -> int:
        """Print the result of a command: `document` as JSON, or call `show`. Return exit code 0."""
        if self.output == "json":
            self.print_json(document)
        else:
            show()
        return OK

    def watch(
        self,
        read: Callable[[], tuple[Any, Callable[[], object]]],
        *,
        interval: float = _WATCH_INTERVAL,
        has_ended: Callable[[], bool] = lambda: False,
    ) -> None:
        """Print the result that `read` returns again whenever its document changes, until Ctrl-C.

        A terminal is cleared before each table; `-o json` prints one document per line. Messages
        of a read follow its result. After the first read, an error of the store is such a message.
        `has_ended`: whether the result that was printed is the last.
        """
        previous = found = None
        while True:
            with self.err.capture() as messages:
                try:
                    found = read()
                except StoreError as error:
                    if found is None:
                        raise
                    self.warn(f"This may be out of date: {error}")
            document, show = found
            if (current := (document, messages.get())) != previous:
                if self.output != "json":
                    if not self.machine_readable:
                        self.out.clear()
                    show()
                elif previous is None or document != previous[0]:
                    write_stdout(f"{to_json(document)}\n", flush=True)
                sys.stderr.write(messages.get())
                previous = current
            if has_ended():
                return
            time.sleep(interval)

    @contextmanager
    def messages_on_output(self) -> Generator[None]:
        """Print messages to standard output, where a panel keeps them above itself."""
        errors = self.err
        self.__dict__["err"] = self.out
        try:
            yield
        finally:
            self.__dict__["err"] = errors

    def echo(self, text: str = "", *, style: str = "") -> None:
        """Print a line of the result."""
        _print_line(self.out, text, style)

    def info(self, text: str, *, style: str = "") -> None:
        """Print a message."""
        _print_line(self.err, text, style)

    def warn(self, text: str) -> None:
        self.info(text, style="yellow")

    def error(self, text: str) -> None:
        """Print `error: <text>`, with the label in red on a terminal."""
        from rich.text import Text

        labeled = Text.assemble(("error:", "bold red"), f" {escape_controls(text)}")
        self.err.print(labeled, soft_wrap=True)

    def print_json(self, value: Any) -> None:
        """Print `value` as JSON in ASCII."""
        write_stdout(to_json(value, indent=2) + "\n")

    def confirm(self, question: str, *, yes: bool = False) -> None:
        """Ask a yes/no question; raise CanceledError for anything but yes.

        `yes` and --non-interactive agree. Raise UsageError where nobody can answer.
        """
        if yes or self.agrees:
            return
        if not self.interactive:
            raise UsageError(f"{question} There is no terminal to ask on.", next_step="Add --yes.")
        self.err.print(f"{escape_controls(question)} [y/N] ", end="")
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            raise CanceledError

    @contextmanager
    def spinner(self, text: str) -> Generator[Callable[[str], None]]:
        """Show a spinner on a terminal, nothing elsewhere. Yield a function that sets its text."""
        if not sys.stderr.isatty():
            yield lambda _: None
            return
        from rich.text import Text  # a plain string would be read as markup

        with self.err.status(Text(escape_controls(text))) as status:
            yield lambda text: status.update(Text(escape_controls(text)))


def can_draw(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in {"", "dumb"}


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return JSON in ASCII without control characters; json.dumps leaves DEL as it is."""
    return json.dumps(value, indent=indent, default=str).replace("\x7f", "\\u007f")


_document: ContextVar[TextIO | None] = ContextVar("_document", default=None)


@contextmanager
def document_alone() -> Generator[None]:
    """Send to stderr what is written to `sys.stdout` in the block, but for the document.

    A config file may leave a thread that prints, a library may print. The process of a command
    has no other output afterwards.
    """
    stdout = sys.stdout
    token = _document.set(stdout)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        stdout.flush()
        if stdout is not sys.__stdout__:  # the process goes on, as in a notebook
            sys.stdout = stdout
            _document.reset(token)


def result_stream() -> TextIO:
    """Return standard output for the result of a command."""
    return _document.get() or sys.stdout


def write_stdout(text: str, *, flush: bool = False) -> None:
    """Write text to standard output, unchanged."""
    stream = result_stream()
    stream.write(text)
    if flush:
        stream.flush()


def format_count(number: float, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def open_terminal(*, interactive: bool, debug: bool, output: str = "cli-table") -> Terminal:
    """Return the terminal of this process; characters that it cannot show become `?`."""
    for stream in (sys.stdout, sys.stderr):
        # A replaced stream (in a test, in a notebook) has no `reconfigure`.
        with suppress(AttributeError):
            stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    stdin: Any = sys.stdin  # None where a process was started without one
    asks = interactive and stdin is not None and stdin.isatty()
    return Terminal(asks, debug, output, agrees=not interactive)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    class PlainConsole(Console):
        def on_broken_pipe(self) -> None:
            # Rich would end the process here; `main` handles a broken pipe for all output.
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
