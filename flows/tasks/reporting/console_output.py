"""What a flow prints once nobody reads it any more: nothing, and the flow goes on.

A worker reads the output of its flows through pipes. When it is killed, Rich, with which Prefect
prints, ends the process at the next line (SystemExit): every job of that worker would be stopped.
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
