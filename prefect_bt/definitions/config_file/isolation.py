"""Keep what a config file does to the process out of the program that loads it.

A config file is a program: it prints, parses `sys.argv`, changes the working directory, imports
libraries that install signal handlers. The program that loads it has its own output and arguments.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from io import RawIOBase, TextIOWrapper
from pathlib import Path
from typing import Any, Final, TextIO, cast

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)
_FOLDER_FLAGS: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC


@contextmanager
def isolate_config(path: Path) -> Generator[None]:
    """Run a config file in the block: `sys.argv` is its path alone, and its output is stderr.

    Output is also that of processes and native code. On exit, output, arguments, `sys.path`,
    working directory, signal handlers and filters of warnings are as before. Not for concurrent
    use: the caller holds a lock.
    """
    argv, search_path, entries = sys.argv, sys.path, list(sys.path)
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    folder = os.open(".", _FOLDER_FLAGS)
    sys.argv = [str(path)]
    try:
        with _stdout_to_stderr(), warnings.catch_warnings():
            yield
    finally:
        sys.argv, sys.path = argv, search_path
        sys.path[:] = entries
        os.fchdir(folder)
        os.close(folder)
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


@contextmanager
def _stdout_to_stderr() -> Generator[None]:
    stdout, stderr, saved = sys.stdout, sys.stderr, None
    _flush(stdout)
    with suppress(OSError):  # closed, as with `>&-`
        saved = os.dup(1)
        os.dup2(2, 1)
    sys.stdout = held = _wrap(stderr) if stderr else None  # held: the file may replace and wrap it
    try:
        yield
    finally:
        for stream in (sys.stdout, held, stdout):  # the file may have written to sys.__stdout__
            _flush(stream)
        sys.stdout, sys.stderr = stdout, stderr
        if saved is not None:
            os.dup2(saved, 1)
            os.close(saved)


def _wrap(stderr: TextIO) -> TextIO:
    raw = cast("Any", _StderrBytes(stderr))
    return TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)


class _StderrBytes(RawIOBase):
    """The bytes below a stream that a config file may wrap, close, or keep for a thread."""

    def __init__(self, stderr: TextIO) -> None:
        self._stderr = stderr

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stderr.fileno()

    def isatty(self) -> bool:
        return self._stderr.isatty()

    def write(self, data: Any, /) -> int:
        with suppress(OSError):  # closed, as with `2>&-`: no reason for a config file to fail
            self._stderr.write(bytes(data).decode(errors="backslashreplace"))
        return len(data)


def _flush(stream: TextIO | None) -> None:
    with suppress(AttributeError, OSError, ValueError):  # None, or closed by the config file
        stream.flush()  # pyright: ignore[reportOptionalMemberAccess]
