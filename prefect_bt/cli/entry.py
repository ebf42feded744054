"""Entry point of the `prefect-bt` script: print the overview, or run a command.

This module imports almost nothing, so that Ctrl-C is handled from the start. The process of a job
imports Prefect for seconds. A command that starts a job starts that process
first (prefect_bt.jobs.starting.launcher), and parses its options and the config file meanwhile.
"""

from __future__ import annotations

import os
import sys

from prefect_bt.cli.interrupt import INTERRUPTED, exit_on_interrupt

TYPE_CHECKING = False  # as in prefect_bt/__init__.py
if TYPE_CHECKING:
    from collections.abc import Sequence

_JOB_COMMANDS = frozenset({"push", "recreate", "retry"})
_STDOUT = 1
_STDERR = 2
_NO_JOB_OPTIONS = ("--dry-run", "--help", "-h", "--deployment", "--remote")
_OTHER_STARTERS = ("PREFECT_BT_DEPLOYMENT", "PREFECT_BT_API_URL")


def main() -> int:
    """Return the exit code of the command."""
    exit_on_interrupt()
    _open_closed_streams()
    try:
        code = _run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # Drop the rest of the output, which has no reader (`| head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        exit_on_interrupt()
    _leave_stdout()
    return code


def _open_closed_streams() -> None:
    """Open /dev/null in place of outputs that were closed by the caller, as with `2>&-`."""
    for name, number in (("stdout", _STDOUT), ("stderr", _STDERR)):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number, inheritable=True)
            setattr(sys, name, os.fdopen(number, "w"))


def _leave_stdout() -> None:
    """Send to stderr what a config file writes at the end of the process, as by `atexit`."""
    sys.stdout = sys.stderr
    os.dup2(_STDERR, _STDOUT)


def _run(words: Sequence[str]) -> int:
    from prefect_bt.cli import command_table

    if overview := command_table.find_overview(words):
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
        colored = sys.stdout.isatty() and not plain
        print(command_table.color_overview(overview) if colored else overview, flush=True)
        return 0
    if will_start_job(words) and not any(os.environ.get(name) for name in _OTHER_STARTERS):
        from prefect_bt.jobs.starting.launcher import prestart_launcher

        prestart_launcher()
    from prefect_bt.cli import app

    return app.main(words)


def will_start_job(arguments: Sequence[str]) -> bool:
    """Guess whether the command starts a job; a process that is not needed is stopped."""
    return bool(arguments) and (
        arguments[0] in _JOB_COMMANDS
        and not any(word.startswith(_NO_JOB_OPTIONS) for word in arguments)
    )


if __name__ == "__main__":
    sys.exit(main())
