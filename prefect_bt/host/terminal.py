"""The terminal of this process, while a program somewhere else uses it."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Final, Protocol

STDIN: Final = 0
_CHUNK: Final = 65536
_END_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class ShellRequest:
    """A command to run in a node with this process's terminal; none for a shell."""

    command: tuple[str, ...] = ()
    with_secrets: bool = False
    """Whether the command gets the variables that hold secrets."""
    secret_variables: tuple[str, ...] = ()
    """Names of these variables, for nodes whose plan is not on this machine."""


class RemoteProgram(Protocol):
    """A program whose input and output pass through this process."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable with output."""
        ...

    def has_unread(self) -> bool:
        """Return whether there is output that was received before, so that nothing signals it."""
        ...

    def read(self) -> list[tuple[int, bytes]] | None:
        """Return output that is there, each with the descriptor to print it on; None at its end."""
        ...

    def write(self, data: bytes) -> None: ...

    def close_input(self) -> None:
        """Pass on the end of the input."""
        ...

    def resize(self, rows: int, columns: int) -> None: ...


def has_terminal() -> bool:
    """Return whether input and output are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def terminal_variables() -> dict[str, str]:
    """Return the variables that describe the terminal to a program."""
    return {name: os.environ[name] for name in ("TERM", "COLORTERM") if name in os.environ}


def read_size() -> tuple[int, int]:
    """Return rows and columns of the terminal."""
    columns, rows = os.get_terminal_size(STDIN)
    return rows, columns


@contextmanager
def ended_by_signals() -> Generator[None]:
    """End the block by SystemExit on SIGTERM or SIGHUP, which by default end the process at once.

    Only the first counts: another one would interrupt the clean-up.
    """

    def end(number: int, _frame: object) -> None:
        ignore_end_signals()
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, end) for number in _END_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def ignore_end_signals() -> None:
    """Ignore SIGTERM and SIGHUP until `ended_by_signals` is left."""
    for number in _END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def restored_terminal() -> Generator[None]:
    """Restore the terminal's settings and its foreground group afterwards."""
    if not os.isatty(STDIN):
        yield
        return
    settings = termios.tcgetattr(STDIN)
    try:
        yield
    finally:
        previous = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        with suppress(OSError, termios.error):  # the terminal was closed
            os.tcsetpgrp(STDIN, os.getpgrp())
            termios.tcsetattr(STDIN, termios.TCSADRAIN, settings)
        signal.signal(signal.SIGTTOU, previous)


def relay(program: RemoteProgram, *, interactive: bool) -> None:
    """Pass input, output and, if `interactive`, every key and the window's size, until it ends."""
    waking, wake = os.pipe()
    for descriptor in (waking, wake):
        os.set_blocking(descriptor, False)

    try:
        with _raw_terminal(program, wake) if interactive else nullcontext():
            _copy(program, waking)
    finally:
        os.close(waking)
        os.close(wake)


@contextmanager
def _raw_terminal(program: RemoteProgram, wake: int) -> Generator[None]:
    """Pass on every key and the window's size; each signal writes to the descriptor `wake`."""

    def wake_up(_number: int, _frame: object) -> None: ...

    # The interpreter writes to it at once, also for a signal just before `select`.
    previous_wake = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    previous = signal.signal(signal.SIGWINCH, wake_up)
    try:
        with ended_by_signals(), restored_terminal():
            try:
                tty.setraw(STDIN, termios.TCSADRAIN)  # what was typed meanwhile is kept
                program.resize(*read_size())
                yield
            finally:
                ignore_end_signals()
    finally:
        signal.signal(signal.SIGWINCH, previous)
        signal.set_wakeup_fd(previous_wake)


def _copy(program: RemoteProgram, waking: int) -> None:
    sources = [program.fileno(), waking, STDIN]
    while True:
        ready = select.select(sources, [], [], 0 if program.has_unread() else None)[0]
        if waking in ready:
            os.read(waking, _CHUNK)
            program.resize(*read_size())
        if STDIN in ready:
            if data := os.read(STDIN, _CHUNK):
                program.write(data)
            else:
                sources.remove(STDIN)
                program.close_input()
        if sources[0] in ready or program.has_unread():
            output = program.read()
            if output is None:
                return
            for descriptor, data in output:
                _write_all(descriptor, data)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
