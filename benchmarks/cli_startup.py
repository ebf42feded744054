"""CPU and wall time of short commands, beside `python -c pass`, `pip --version` and Prefect's own.

`python benchmarks/cli_startup.py [--runs 7] [--json] [--without-prefect]`. Each figure is a child
process, taken in turn; the table shows medians. CPU (user and system) is what a busy machine spoils
least. The store is a folder with 20 ended jobs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from listing import CLI, measure, report, write_jobs

GOALS = {"--help": 0.15, "view": 0.4, "logs": 0.4, "checkpoints list": 0.4}
"""CPU seconds on a machine that does nothing else."""


def commands(*, prefect: bool) -> dict[str, list[str]]:
    """Name -> command: ours, then what any Python command costs."""
    ours = {words: [*CLI, *words.split()] for words in (*GOALS, "view --help", "--version")}
    others = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "pip --version": [sys.executable, "-m", "pip", "--version"],
    }
    if prefect:
        others["prefect --version"] = [sys.executable, "-m", "prefect", "--version"]
    return ours | others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--without-prefect", action="store_true")
    given = parser.parse_args()
    taken: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="prefect-bt-bench-") as folder:
        root = Path(folder)
        write_jobs(root / "store", 20)
        environment = {
            **os.environ,
            "PREFECT_BT_STORE": str(root / "store"),
            "PREFECT_BT_STATE_DIR": str(root / "state"),
        }
        named = commands(prefect=not given.without_prefect)
        for command in named.values():  # byte code and the index are there from here on
            measure(command, environment)
        for _ in range(given.runs):
            for name, command in named.items():
                taken.setdefault(name, []).append(measure(command, environment))
    report(taken, as_json=given.json)
    if not given.json:
        print("Goals (CPU s, quiet machine): " + ", ".join(f"{k} {v}" for k, v in GOALS.items()))


if __name__ == "__main__":
    main()
