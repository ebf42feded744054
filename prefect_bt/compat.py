"""Run a program written for truss_train against prefect_bt, from one line.

    import prefect_bt.compat                       at the top of the program, or
    python -m prefect_bt.compat program.py ...     without touching it

Where truss is not installed, `truss` and `truss_train` are our stand-ins
(definitions.truss_compat.modules) from now on. Where it is, its own classes stay, and what submits
a job comes to us: `push` and `truss_train.deployment.create_training_job`, also under names bound
to them before. `prefect_bt.compat.uninstall()` undoes it.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from prefect_bt.definitions.truss_compat.modules import install, uninstall

__all__ = ["install", "uninstall"]

install()


def main(arguments: Sequence[str]) -> int:
    """Run the program named by the first argument as `__main__`, with the others as its own."""
    program = Path(arguments[0]) if arguments else None
    if program is None or not program.is_file():
        what = f"{str(program)!r} is not a file" if program else "no program was named"
        sys.stderr.write(f"error: {what}. Usage: python -m prefect_bt.compat program.py ...\n")
        return 2
    sys.argv = list(arguments)
    sys.path[0] = str(program.absolute().parent)
    runpy.run_path(str(program), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
