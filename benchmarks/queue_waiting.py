"""What jobs that wait cost: lists of them, and the worker of a machine that is full.

The jobs are written with the product's own functions. One lease holds all GPUs of the machine; its
job is alive because this process holds its lock.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from figures import Goal, Row, alone
from gangs import CountingProxy
from listing import measure
from queue_bucket import serve_bucket
from queue_jobs import GPU_TYPE, PoolJob, draw_jobs, make_project
from queue_machines import (
    CLI,
    PORT,
    Pool,
    PretendedMachine,
    list_pool_processes,
    make_pool,
    serve_prefect,
)
from queue_pool import push_all

from prefect_bt.definitions import project_document
from prefect_bt.host.job_lock import JobLock, host_id
from prefect_bt.jobs.starting.acceptance import accept_here
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord, Resources
from prefect_bt.ledger.states import JobState
from prefect_bt.queue.leases import Leases
from prefect_bt.queue.records import Demand, QueuedJob
from prefect_bt.queue.waiting_jobs import put_entry

GPUS = 8
RUNS = 5
SETTLE_SECONDS = 3.0
PUSHED = 10
THREADS = 8
MEMORY = 64 << 20
COMMANDS = {
    "json": ("queue", "-o", "json"),
    "table": ("queue",),
    "view": ("view",),
    "none": ("--version",),
}
"""Figure -> command; the last one reads no store."""


@dataclass(frozen=True)
class Watched:
    """What the worker used in a time: percent of a core, bytes, requests to store and Prefect."""

    cpu: float
    rss: int
    requests: Counter[str]
    api: Counter[str]
    seconds: float
    processes: int
    """Processes of the machine beside the worker."""


@dataclass(frozen=True)
class Proxies:
    """Count the requests to the store, and to Prefect."""

    store: CountingProxy
    api: CountingProxy

    def read(self) -> tuple[Counter[str], Counter[str]]:
        """Return the requests until now."""
        return Counter(self.store.counts), Counter(self.api.counts)


def measure_in_folder(root: Path, jobs: int, seconds: float) -> list[Row]:
    """Return the figures for a store in a folder, without a Prefect server."""
    pool = make_pool(root, {}, count=1, gpus=GPUS)
    return _measure(pool, jobs, seconds, "folder", None)


def measure_in_bucket(root: Path, jobs: int, seconds: float) -> list[Row]:
    """Return the figures for a store in a local S3 server; requests are counted."""
    root.mkdir(parents=True)
    with serve_prefect(root) as api, serve_bucket(root) as (store, environment, bucket):
        proxies = Proxies(bucket, CountingProxy(PORT))
        counted = {**api, "PREFECT_API_URL": proxies.api.url, **environment}
        pool = make_pool(root / "pool", counted, count=1, gpus=GPUS, store=store)
        try:
            return _measure(pool, jobs, seconds, "S3", proxies)
        finally:
            proxies.api.close()


def _measure(
    pool: Pool, count: int, seconds: float, where: str, proxies: Proxies | None
) -> list[Row]:
    [machine] = pool.machines
    write_waiting_jobs(pool.ledger, draw_jobs(count, seed=7))
    what = f"{count} waiting, {where}"
    with hold_machine(pool.ledger, machine.state_dir):
        lists = [_time_command(machine, name, what) for name in COMMANDS]
        pushes = _count_pushes(pool, proxies, what) if proxies else []
        watched = watch_worker(pool, machine, seconds, proxies)
    return [*lists, *pushes, *_list_worker_rows(watched, what, counted=proxies is not None)]


def _count_pushes(pool: Pool, proxies: Proxies, what: str) -> list[Row]:
    """Push jobs that wait, and return the requests of each."""
    before = proxies.read()
    push_all(pool, [replace(one, name=f"new-{one.name}") for one in draw_jobs(PUSHED, seed=8)], {})
    store, api = (new - old for new, old in zip(proxies.read(), before, strict=True))
    what = f"each of {PUSHED} pushes behind {what}"
    return [
        alone("push_store_calls", "calls", [store.total() / PUSHED], what=what),
        alone("push_api_calls", "calls", [api.total() / PUSHED], what=what, notes=(f"{api}",)),
    ]


def _list_worker_rows(watched: Watched, what: str, *, counted: bool) -> list[Row]:
    little = Goal("<= 2 %", lambda percent: percent <= 2.0)
    none = Goal("0", lambda number: number == 0)
    rows = [
        alone("worker_cpu", "% core", [watched.cpu], what=f"full, {what}", goal=little),
        alone("worker_rss", "MB", [watched.rss / 1e6], what=what),
        alone("waiting_processes", "", [watched.processes], what=what, goal=none),
    ]
    if not counted:
        return rows
    notes = (f"the worker's requests: {dict(watched.requests)}, {dict(watched.api)}",)
    rates = [one.total() / watched.seconds for one in (watched.requests, watched.api)]
    return [
        *rows,
        alone("worker_store_calls", "1/s", rates[:1], what=what, notes=notes),
        alone("worker_api_calls", "1/s", rates[1:], what=what),
    ]


def write_waiting_jobs(ledger: Ledger, jobs: list[PoolJob]) -> None:
    """Write the jobs as a push does that puts them into the queue."""
    projects = {job.team: ledger.projects.ensure(f"pool-{job.team}", team=job.team) for job in jobs}
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda job: _write_job(ledger, projects[job.team].id, job), jobs))


def _write_job(ledger: Ledger, project_id: str, job: PoolJob) -> None:
    job_id, now = ledger.reserve_job_id(project_id), ledger.now()
    record = JobRecord(
        id=job_id,
        name=job.name,
        project_id=project_id,
        project_name=f"pool-{job.team}",
        created_at=now,
        definition=project_document(make_project(job)),
        resources=Resources(cpus=1, memory=MEMORY, gpus=job.gpus, gpu_type=GPU_TYPE),
        max_run_time=job.run_time,
    )
    ledger.create_job(record)
    ledger.append_event(job_id, JobState.PENDING)
    put_entry(ledger.store, replace(_queue(record, job), event=0))


def _queue(record: JobRecord, job: PoolJob) -> QueuedJob:
    return QueuedJob(
        id=record.id,
        demand=Demand(job.gpus, GPU_TYPE, 1, MEMORY),
        submitted_at=record.created_at,
        since=record.created_at,
        priority=job.priority,
        team=job.team,
        spot=job.spot,
        run_time=job.run_time,
        project_id=record.project_id,
    )


@contextmanager
def hold_machine(ledger: Ledger, state_dir: Path) -> Iterator[None]:
    """Let a job that lives in this process hold all GPUs of the machine."""
    state_dir.mkdir(parents=True, exist_ok=True)
    host, lock = host_id(state_dir).partition(":")[2], JobLock(state_dir)
    full = PoolJob("full", GPUS, 3600.0, 0, "blue")
    project = ledger.projects.ensure("pool-blue", team="blue")
    job_id, now = ledger.reserve_job_id(project.id), ledger.now()
    record = JobRecord(
        job_id, "full", project.id, "pool-blue", now, project_document(make_project(full))
    )
    leases = Leases(ledger.store)
    leases.read()
    lock.acquire(job_id)
    try:
        ledger.create_job(record)
        accept_here(ledger, record, host_id(state_dir))
        leases.create(_queue(record, full), host=host)
        yield
    finally:
        lock.release_and_remove()


def watch_worker(
    pool: Pool, machine: PretendedMachine, seconds: float, proxies: Proxies | None
) -> Watched:
    """Start the worker, let it settle, and return what it uses in the given time."""
    machine.start_worker()
    assert machine.worker
    try:
        while "takes jobs" not in machine.log.read_text():
            time.sleep(0.2)
        time.sleep(SETTLE_SECONDS)
        process = psutil.Process(machine.worker.pid)
        before = proxies.read() if proxies else (Counter[str](), Counter[str]())
        began, used = time.monotonic(), sum(process.cpu_times()[:4])
        time.sleep(seconds)
        took, cpu = time.monotonic() - began, sum(process.cpu_times()[:4]) - used
        after = proxies.read() if proxies else before
        asked = [new - old for new, old in zip(after, before, strict=True)]
        others = [one for one in list_pool_processes(pool.root) if one.pid != process.pid]
        return Watched(
            100 * cpu / took, process.memory_info().rss, asked[0], asked[1], took, len(others)
        )
    finally:
        machine.kill_worker()


def _time_command(machine: PretendedMachine, name: str, what: str) -> Row:
    """Return the wall seconds of processes of a command, one after another, and their CPU."""
    command = [*CLI, *COMMANDS[name]]
    taken = [measure(command, machine.environment) for _ in range(RUNS)]
    text = f"{' '.join(COMMANDS[name])}, {what}"
    cpu = {"CPU s": statistics.median(cpu for cpu, _ in taken)}
    return alone(f"queue_{name}_s", "s", [wall for _, wall in taken], what=text, extra=cpu)
