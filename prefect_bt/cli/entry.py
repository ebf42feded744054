"""Entry point of the `prefect-bt` script: what takes longest begins before the words are read.

A job's process imports Prefect for seconds. A command that is going to start a job starts that
process first (prefect_bt.starting), and reads its own words, and the config file, meanwhile.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

_STARTS_JOBS: Final = frozenset({"push", "recreate", "retry"})
_STARTS_NONE: Final = ("--dry-run", "--help", "-h", "--deployment")


def main() -> int:
    """Returns the exit code, as app.main."""
    words = sys.argv[1:]
    if starts_a_job(words) and not os.environ.get("PREFECT_BT_DEPLOYMENT"):
        from prefect_bt.starting import start_ahead

        start_ahead()
    from prefect_bt.cli import app

    return app.main(words)


def starts_a_job(words: Sequence[str]) -> bool:
    """A guess: a process that turns out not to be needed is sent away."""
    return bool(words) and (
        words[0] in _STARTS_JOBS and not any(word.startswith(_STARTS_NONE) for word in words)
    )


if __name__ == "__main__":
    sys.exit(main())
