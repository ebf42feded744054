"""The output of a command on a terminal, in this process."""

import os
import pty
from concurrent.futures import ThreadPoolExecutor

from tests.cli.conftest import Cli, Run
from tests.in_process import command


def run_on_terminal(cli: Cli, *words: str, width: int = 120, **env: str) -> Run:
    """Run the command on a terminal on which nothing is typed; all that it shows is in `out`.

    Rich takes the width from COLUMNS: it asks the process's own streams for their size.
    """
    ours, theirs = pty.openpty()
    variables = {"TERM": "xterm-256color", "COLUMNS": str(width), **cli.env, **env}
    with ThreadPoolExecutor(1) as reader:
        shown = reader.submit(_read_to_end, ours)
        try:
            with (
                os.fdopen(os.dup(theirs)) as keyboard,
                os.fdopen(theirs, "w", encoding="utf-8") as terminal,
            ):
                done = command(
                    *words,
                    environment=variables,
                    folder=cli.folder,
                    stdin=keyboard,
                    terminal=terminal,
                )
        finally:
            text = shown.result()
            os.close(ours)
    return Run(done.code, text.decode(), "")


def _read_to_end(terminal: int) -> bytes:
    """Return what was written until the other side is closed."""
    found = b""
    try:
        while chunk := os.read(terminal, 65536):
            found += chunk
    except OSError:  # how Linux reports a closed terminal
        pass
    return found
