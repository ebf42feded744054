"""Weights: how fast they are mirrored, what ten jobs at once fetch, how soon a second job has them.

`python benchmarks/weights.py [--only NAME] [--runs N] [--scale 0.1] [-o json]`. Every figure is
measured beside its rival in the same run, in turn. docs/benchmarks.md says what each one is.
"""

from __future__ import annotations

import argparse
import functools
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import mirrors
import stagings
from figures import Row, as_json, as_table, busy
from mirroring import Setup

Figure = Callable[[Setup], list[Row]]


def main() -> int:
    given = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows: list[Row] = []
    with _folder(given.work) as work:
        setup = Setup(work, given.runs, given.scale, given.latency / 1000)
        for name in given.only or list(FIGURES):
            print(f"{name} ... ({busy():.0%} of the machine is busy)", file=sys.stderr, flush=True)
            new = FIGURES[name](setup)
            rows += new
            if given.output == "table":
                print(as_table(new), file=sys.stderr, flush=True)
    print(as_json(rows) if given.output == "json" else as_table(rows))
    return 1 if any(row.met is False for row in rows) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=FIGURES, help="may be repeated")
    parser.add_argument("--runs", type=int, default=3, help="pairs a figure")
    parser.add_argument("--scale", type=float, default=1.0, help="of sizes and counts")
    parser.add_argument("--latency", type=float, default=0.0, help="ms before every answer")
    parser.add_argument("--work", type=Path, help="where the files lie (45 GB free)")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser.parse_args()


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    """A folder that is gone afterwards, published and read-only files included."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="prefect-bt-bench-", dir=given) as folder:
        yield Path(folder)


def _mirrors(figure: str) -> Figure:
    """From a Hub or a bucket, or from both where only the shape is named."""

    def measure(setup: Setup) -> list[Row]:
        return [row for one, shape in SOURCES[figure] for row in one(figure, shape, setup)]

    return measure


SOURCES: dict[str, list[tuple[Callable[..., list[Row]], tuple[int, int]]]] = {
    "mirror_hub": [(mirrors.mirror_hub, mirrors.LARGE)],
    "mirror_s3": [(mirrors.mirror_s3, mirrors.LARGE)],
    "mirror_10000_files": [
        (mirrors.mirror_hub, mirrors.SMALL),
        (mirrors.mirror_s3, mirrors.SMALL),
    ],
}
FIGURES: dict[str, Figure] = {
    **{name: _mirrors(name) for name in SOURCES},
    "mirror_10_processes": mirrors.ten_processes,
    "revisions_share": mirrors.revisions_share,
    **{name: functools.partial(stagings.stage, name) for name in stagings.SHAPES},
}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
