"""Entry point of the `prefect-bt` script: what takes longest begins before the words are read.

A job's process imports Prefect for seconds. A command that is going to start a job starts that
process first (prefect_bt.jobs.start), and reads its own words, and the config file, meanwhile.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

_JOB_COMMANDS: Final = frozenset({"push", "recreate", "retry"})
_NO_JOB_OPTIONS: Final = ("--dry-run", "--help", "-h", "--deployment")


def main() -> int:
    """Returns the exit code, as app.main."""
    words = sys.argv[1:]
    if will_start_job(words) and not os.environ.get("PREFECT_BT_DEPLOYMENT"):
        from prefect_bt.jobs.start import prestart_launcher

        prestart_launcher()
    from prefect_bt.cli import app

    return app.main(words)


def will_start_job(arguments: Sequence[str]) -> bool:
    """A guess: a process that turns out not to be needed is sent away."""
    return bool(arguments) and (
        arguments[0] in _JOB_COMMANDS
        and not any(word.startswith(_NO_JOB_OPTIONS) for word in arguments)
    )


if __name__ == "__main__":
    sys.exit(main())
