"""What a small job costs in a sweep: requests to Prefect's API and to the store, and seconds.

The jobs have one pretended GPU and the command `true`; two machines have 16 GPUs. The store is a
local S3 server. Its requests include those of the workers, which look at the queue every second.
Beside them stand as many processes, 16 at once, that run a bare Prefect flow with one task.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from figures import Row, alone, paired
from gangs import CountingProxy
from queue_bucket import serve_bucket
from queue_jobs import PoolJob
from queue_machines import PORT, Pool, make_pool, serve_prefect
from queue_pool import push_all

MACHINES, GPUS = 2, 8
LONGEST = 900.0
IDLE_SECONDS = 5.0
FLOW = """
from prefect import flow, task
@task
def work(): return None
@flow
def bare(): work()
bare()
"""


@dataclass(frozen=True)
class Side:
    """Requests of all, seconds from start to end of each, and of all together."""

    api: Counter[str]
    store: Counter[str]
    each: list[float]
    total: float
    watching: float = 0.0
    """Requests to the store with which the workers looked at the queue: those of as many idle
    seconds."""


def measure(root: Path, count: int) -> list[Row]:
    """Run the jobs and the flows, and return the figures."""
    with serve_prefect(root) as api:
        proxy = CountingProxy(PORT)
        counted = {**api, "PREFECT_API_URL": proxy.url}
        theirs = run_flows(root, counted, proxy, count)
        proxy.counts.clear()
        with serve_bucket(root) as (store, environment, bucket):
            pool = make_pool(
                root / "pool", {**counted, **environment}, count=MACHINES, gpus=GPUS, store=store
            )
            try:
                ours = run_jobs(pool, proxy, bucket, count)
            finally:
                pool.end()
        proxy.close()
    return _list_rows(ours, theirs, count)


def run_jobs(pool: Pool, proxy: CountingProxy, bucket: CountingProxy, count: int) -> Side:
    """Push the jobs to the pool, and wait until each is over and has told Prefect so."""
    jobs = [PoolJob(f"job-{number:03d}", 1, 0.0, 0, "red") for number in range(count)]
    known: dict[str, PoolJob] = {}
    pool.start()
    time.sleep(IDLE_SECONDS)  # the workers import
    idle = bucket.counts.total()
    time.sleep(IDLE_SECONDS)
    began, asked = time.time(), Counter(bucket.counts)
    rate = (asked.total() - idle) / IDLE_SECONDS
    push_all(pool, jobs, known)
    deadline = time.monotonic() + LONGEST
    ends: dict[str, float] = {}
    while len(ends) < count and time.monotonic() < deadline:
        time.sleep(0.5)
        ends |= _find_ends(pool, [job for job in known if job not in ends])
    store, watching = Counter(bucket.counts) - asked, rate * (time.time() - began)
    time.sleep(5.0)  # the last states that are told to Prefect
    if failed := [job for job in known if job not in ends]:
        raise SystemExit(f"{len(failed)} jobs did not complete: {failed}, {pool.root}")
    starts = {job: pool.ledger.get_job(job).created_at for job in known}
    each = [ends[job] - starts[job] for job in known]
    return Side(Counter(proxy.counts), store, each, max(ends.values()) - began, watching)


def _find_ends(pool: Pool, jobs: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for job_id in jobs:
        last = pool.ledger.list_events(job_id)[-1]
        if last.state.terminal:
            found[job_id] = last.at
    return found


def run_flows(root: Path, api: dict[str, str], proxy: CountingProxy, count: int) -> Side:
    """Run as many processes with a bare flow."""
    program = root / "bare.py"
    program.write_text(FLOW)
    pool = make_pool(root / "bare", api, count=1)
    environment = pool.machines[0].environment

    def run(_: int) -> float:
        began = time.monotonic()
        command = [sys.executable, str(program)]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=LONGEST)
        return time.monotonic() - began

    began = time.monotonic()
    with ThreadPoolExecutor(MACHINES * GPUS) as threads:
        each = list(threads.map(run, range(count)))
    return Side(Counter(proxy.counts), Counter(), each, time.monotonic() - began)


def _list_rows(ours: Side, theirs: Side, count: int) -> list[Row]:
    peer = "bare flow with one task"
    notes = (
        f"requests to Prefect, ours: {_top(ours.api)}",
        f"requests to Prefect, bare: {_top(theirs.api)}",
        f"requests to the store: {_by_method(ours.store)}; the workers' looks are in them",
    )
    own = (ours.store.total() - ours.watching) / count
    calls = ours.api.total() / count, theirs.api.total() / count
    rates = 60 * count / ours.total, 60 * count / theirs.total
    return [
        paired("sweep_api_calls", "calls", [calls], peer=f"{peer}, each", notes=notes),
        alone("sweep_store_calls", "calls", [ours.store.total() / count], what="each job"),
        alone("sweep_store_own", "calls", [own], what="each job, without the workers' looks"),
        paired("sweep_seconds", "s", list(zip(ours.each, theirs.each, strict=True)), peer=peer),
        paired("sweep_jobs_per_min", "1/min", [rates], peer=peer),
    ]


def _top(counts: Counter[str]) -> str:
    return ", ".join(f"{path} {number}" for path, number in counts.most_common(8))


def _by_method(counts: Counter[str]) -> dict[str, int]:
    found = Counter[str]()
    for path, number in counts.items():
        found[path.partition(" ")[0]] += number
    return dict(found)
