"""The terminal of this process, while a program somewhere else uses it."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Protocol

STDIN: Final = 0
_CHUNK: Final = 65536


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

    def wake_up(_number: int, _frame: object) -> None: ...

    def end(number: int, _frame: object) -> None:
        for other in (signal.SIGTERM, signal.SIGHUP):  # it would interrupt the restoration
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    # By default, SIGTERM and SIGHUP would leave the terminal raw.
    handlers = {signal.SIGWINCH: wake_up, signal.SIGTERM: end, signal.SIGHUP: end}
    if not interactive:
        handlers.clear()
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    # Written to at once, also by a signal that comes just before `select`.
    woken = signal.set_wakeup_fd(wake, warn_on_full_buffer=False) if interactive else -1
    try:
        with restored_terminal():
            if interactive:
                tty.setraw(STDIN, termios.TCSADRAIN)  # what was typed meanwhile is kept
                program.resize(*read_size())
            _copy(program, waking)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if interactive:
            signal.set_wakeup_fd(woken)
        os.close(waking)
        os.close(wake)


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
