"""Continue a flow without output after its reader has died.

A worker reads the output of its flows through pipes. When the worker is killed, Rich, which Prefect
prints with, ends the process at the next line (SystemExit): every job of the worker would stop.
"""

from __future__ import annotations

import os
from contextlib import suppress

from rich.console import Console


def ignore_broken_pipe() -> None:
    """Ignore broken pipes from now on, in this process."""
    Console.on_broken_pipe = _silence_console


def _silence_console(self: Console) -> None:
    self.quiet = True
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)
