"""Checkpoints: how fast they travel, what they cost the training, how soon they are safe.

`python benchmarks/checkpoints.py [--only NAME] [--runs N] [--scale 0.1] [-o json]`. Every figure is
measured beside its rival in the same run, in turn. docs/benchmarks.md says what each one is.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import idling
import lags
import steps
import throughput
from figures import Row, as_json, as_table, busy
from servers import Server, serving


def main() -> int:
    given = _parse()
    wanted: list[str] = given.only or list(FIGURES)
    rows: list[Row] = []
    with _folder(given.work) as work, _server(given, work, wanted) as server:
        for name in wanted:
            print(f"{name} ... ({busy():.0%} of the machine is busy)", file=sys.stderr, flush=True)
            rows += FIGURES[name](given, work, server)
            if given.output == "table":
                print(as_table(rows[-1:]).splitlines()[1], file=sys.stderr, flush=True)
    print(as_json(rows) if given.output == "json" else as_table(rows))
    return 1 if any(row.met is False for row in rows) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=FIGURES, help="may be repeated")
    parser.add_argument("--runs", type=int, default=3, help="pairs a figure")
    parser.add_argument("--scale", type=float, default=1.0, help="of sizes, counts and times")
    parser.add_argument("--server", choices=("rclone", "moto"), default="rclone")
    parser.add_argument("--endpoint", default="", help="a real S3 server, with --bucket")
    parser.add_argument("--bucket", default="", help="where to write there")
    parser.add_argument("--same-priority", action="store_true", help="rivals at nice 19, as ours")
    parser.add_argument("--work", type=Path, help="keep the files here (16 GB free)")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser.parse_args()


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="prefect-bt-bench-", dir=given) as folder:
        work = Path(folder)
        if given is not None:
            (given / "data").mkdir(exist_ok=True)
            (work / "data").symlink_to((given / "data").absolute())
        yield work


@contextmanager
def _server(given: argparse.Namespace, work: Path, wanted: list[str]) -> Iterator[Server | None]:
    if not set(wanted) & throughput.SHAPES.keys():
        yield None
        return
    with serving(given.server, work, endpoint=given.endpoint, bucket=given.bucket) as server:
        yield server


def _uploads(name: str) -> Callable[[argparse.Namespace, Path, Server | None], list[Row]]:
    def measure(given: argparse.Namespace, work: Path, server: Server | None) -> list[Row]:
        assert server is not None
        return throughput.uploads(
            name,
            server,
            work=work,
            runs=given.runs,
            scale=given.scale,
            same_priority=given.same_priority,
        )

    return measure


FIGURES: dict[str, Callable[[argparse.Namespace, Path, Server | None], list[Row]]] = {
    **{name: _uploads(name) for name in throughput.SHAPES},
    "local_store": lambda given, work, _: throughput.local_store(
        work=work, runs=given.runs, scale=given.scale
    ),
    "step_time": lambda given, work, _: steps.step_time(
        work=work, runs=given.runs, scale=given.scale
    ),
    "commit_lag": lambda given, work, _: lags.commit_lag(
        work=work, runs=given.runs, scale=given.scale
    ),
    "scan_100k": lambda given, work, _: idling.scan_100k(work=work, scale=given.scale),
}


if __name__ == "__main__":
    sys.exit(main())
