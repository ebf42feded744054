"""Measure the queue of jobs: a pool under kills, many waiting jobs, and a sweep of small jobs.

`python benchmarks/queue_benchmark.py pool [--jobs 200] [--seed 7] [--scale 1.0] [--kills N]
[--bucket] [--latency 0.04] [--skew 600]`: two machines with 8 pretended H100 each. What is promised
is checked from the jobs' own records; the makespan stands beside the area of the jobs and beside
the scheduler alone in virtual time.

`... waiting [--jobs 1000]`: what jobs that wait cost, in a folder and in a local S3 server.

`... sweep [--jobs 20]`: small jobs through 16 GPUs, with the requests to Prefect and to the store,
beside bare Prefect flows.

It is no queue.py: that would be the module `queue` of all programs of this folder.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from figures import Goal, Row, alone, as_json, as_table, busy, paired
from queue_bucket import serve_bucket
from queue_ideal import VirtualPool, find_area_bound
from queue_jobs import draw_jobs
from queue_machines import make_pool, serve_prefect
from queue_pool import Result, run_pool
from queue_watch import LONGEST_WAIT, PATIENCE

MACHINES, GPUS, CAP = 2, 8, 12
NEAR = Goal("<= 1.15", lambda ratio: ratio <= 1.15)


def measure_pool(root: Path, given: argparse.Namespace) -> list[Row]:
    """Run the pool, print what does not hold, and return the figures."""
    jobs = draw_jobs(given.jobs, given.seed, seconds=(15 * given.scale, 60 * given.scale))
    kills = max(3, given.jobs // 10) if given.kills is None else given.kills
    with ExitStack() as servers:
        variables, store = servers.enter_context(serve_prefect(root)), ""
        if given.bucket or given.latency:
            store, own, _ = servers.enter_context(serve_bucket(root, given.latency))
            variables = {**variables, **own}
        sizes = {"count": MACHINES, "gpus": GPUS, "skew": given.skew}
        pool = make_pool(root / "pool", variables, store=store, **sizes)
        try:
            chosen = {"cap": CAP, "seed": given.seed, "kills": kills}
            patience = 600 + 60 * given.jobs * max(0.2, given.scale)
            result = run_pool(pool, jobs, patience=patience, **chosen)
        finally:
            pool.end()
    for fault in result.faults:
        print(f"FAULT: {fault}")
    # The events of two machines whose clocks differ tell no times.
    return _list_promises(result) + ([] if given.skew else _list_times(result))


def _list_promises(result: Result) -> list[Row]:
    none = Goal("0", lambda count: count == 0)
    notes = (f"killed or stopped: {', '.join(result.kills) or 'nothing'}",)
    what = f"{len(result.jobs)} jobs, {len(result.kills)} kills, {result.preempted} preempted"
    watch = result.watch
    return [
        alone("pool_faults", "", [len(result.faults)], what=what, goal=none, notes=notes),
        alone("pool_idle_s", "s", [watch.seconds], what=f"a job could start for > {PATIENCE:g} s"),
        alone(
            "pool_wait_s",
            "s",
            [watch.longest],
            what=f"longest wait of a job that had room, in {watch.watched:.0f} s with a worker",
            goal=Goal(f"<= {LONGEST_WAIT:g} s", lambda seconds: seconds <= LONGEST_WAIT),
        ),
        alone(
            "pool_left_out_s", "s", [watch.left_out], what="only machines without worker had room"
        ),
        alone(
            "pool_held_s",
            "s",
            [watch.longest_held],
            what=f"a starter had a job; {len(watch.held)} jobs for > {LONGEST_WAIT:g} s",
        ),
        alone("pool_push_s", "s", [result.pushing], what="to push all, two at once"),
    ]


def _list_times(result: Result) -> list[Row]:
    jobs = list(result.jobs.values())
    area = find_area_bound(result.runs, MACHINES * GPUS)
    ideal = VirtualPool(MACHINES, GPUS, CAP)
    there = ideal.run(jobs, [result.arrivals[job.name] for job in jobs])
    at_once = VirtualPool(MACHINES, GPUS, CAP).run(jobs, [0.0] * len(jobs))
    span = result.makespan
    return [
        alone("pool_start_s", "s", result.starts, what="from the decision to the first command"),
        paired("pool_area", "s", [(span, area)], peer="area of all runs, or the longest"),
        paired(
            "pool_ideal", "s", [(span, there)], peer="scheduler alone, same arrivals", goal=NEAR
        ),
        paired("pool_ideal_at_once", "s", [(span, at_once)], peer="the same, all there at 0 s"),
    ]


def measure_waiting(root: Path, given: argparse.Namespace) -> list[Row]:
    """Return what jobs that wait cost, in both kinds of store."""
    from queue_waiting import measure_in_bucket, measure_in_folder

    sizes = given.jobs, given.seconds
    return [*measure_in_folder(root / "folder", *sizes), *measure_in_bucket(root / "s3", *sizes)]


def measure_sweep(root: Path, given: argparse.Namespace) -> list[Row]:
    """Return what small jobs cost beside bare flows."""
    from queue_sweep import measure

    return measure(root, given.jobs)


def parse_arguments() -> argparse.Namespace:
    """Return the options; `measure` is the function of the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)

    def add(name: str, measure: Callable[..., list[Row]], jobs: int) -> argparse.ArgumentParser:
        command = commands.add_parser(name)
        command.set_defaults(measure=measure)
        command.add_argument("--jobs", type=int, default=jobs)
        command.add_argument("-o", "--output", choices=["table", "json"], default="table")
        command.add_argument("--keep", action="store_true", help="keep the folder with all files")
        return command

    pool = add("pool", measure_pool, 200)
    pool.add_argument("--seed", type=int, default=7)
    pool.add_argument("--scale", type=float, default=1.0, help="of the jobs' lengths")
    pool.add_argument("--kills", type=int, help="default: one for ten jobs, at least 3")
    pool.add_argument("--bucket", action="store_true", help="store in a local S3 server")
    pool.add_argument("--latency", type=float, default=0.0, help="seconds more for its requests")
    pool.add_argument("--skew", type=float, default=0.0, help="seconds that a clock is ahead")
    waiting = add("waiting", measure_waiting, 1000)
    waiting.add_argument("--seconds", type=float, default=30.0, help="to watch the worker")
    add("sweep", measure_sweep, 20)
    return parser.parse_args()


def main() -> None:
    given = parse_arguments()
    note = f"{busy():.0%} of the cores are busy before the first run"
    root = Path(tempfile.mkdtemp(prefix="prefect-bt-bench-"))
    try:
        rows = given.measure(root, given)
    finally:
        if given.keep:
            print(f"The files are in {root}.")
        else:
            remove_folder(root)
    print(as_json(rows) if given.output == "json" else f"{as_table(rows)}\n* {note}")


def remove_folder(root: Path) -> None:
    """Remove the folder, into which a process that was killed may still write."""
    import shutil

    shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
