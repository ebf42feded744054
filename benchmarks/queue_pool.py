"""Run jobs through a pool of pretended machines, kill processes meanwhile, and collect the records.

tests/e2e/test_queue_kills.py does it with few short jobs.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from queue_checks import find_faults
from queue_jobs import CAPPED, GPU_TYPE, PoolJob, write_jobs
from queue_kills import Killer
from queue_machines import Pool, list_job_processes
from queue_records import Run, read_runs
from queue_watch import IdleWatch

from prefect_bt.ledger.records import Cause, JobEvent
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import QUEUE_WAITING
from prefect_bt.queue.leases import Leases

SETTLE_SECONDS = 120.0
"""Longest time after the last job's end until its processes and its lease are gone."""


@dataclass(frozen=True)
class Result:
    """What happened. Times are in seconds from the first job's acceptance."""

    jobs: dict[str, PoolJob]
    runs: list[Run]
    faults: list[str]
    kills: list[str]
    watch: IdleWatch
    """For how long jobs that had room waited, and what is left out of that."""
    makespan: float
    arrivals: dict[str, float]
    """When each job was accepted, by its name."""
    preempted: int
    pushing: float
    starts: list[float]
    """Seconds from the decision that a job starts to its first command."""


def run_pool(
    pool: Pool, jobs: Sequence[PoolJob], *, cap: int, seed: int, kills: int, patience: float
) -> Result:
    """Push the jobs from all machines, wait until all are over, and check what is promised.

    `patience`: seconds after which jobs that are not over are a fault.
    """
    known: dict[str, PoolJob] = {}
    killer = Killer(pool, known, len(jobs), kills=kills, seed=seed)
    watch = IdleWatch(pool)
    _start_pool(pool, cap)
    for thread in (killer, watch):
        thread.start()
    began = time.monotonic()
    pushing = push_all(pool, jobs, known)
    try:
        _await_ends(pool, known, began + patience)
    finally:
        killer.finish()
        watch.finish()
    _await_quiet(pool, known)
    return _make_result(pool, known, killer, watch, cap, pushing)


def _start_pool(pool: Pool, cap: int) -> None:
    """Start the workers of the machines, with a limit for one team."""
    limit = ["capacity", "update", "--gpu-type", GPU_TYPE, "--team", CAPPED]
    pool.machines[0].run(*limit, "--capacity", str(cap))
    pool.start()


def push_all(pool: Pool, jobs: Sequence[PoolJob], known: dict[str, PoolJob]) -> float:
    """Push an equal share from each machine at once; fill `known`, and return the seconds."""
    began, names = time.monotonic(), {job.name: job for job in jobs}
    threads = [
        threading.Thread(target=_push, args=(pool, number, jobs, names, known))
        for number in range(len(pool.machines))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(known) != len(jobs):
        raise SystemExit(f"Only {len(known)} of {len(jobs)} jobs were accepted: {pool.root}")
    return time.monotonic() - began


def _push(
    pool: Pool,
    number: int,
    jobs: Sequence[PoolJob],
    names: dict[str, PoolJob],
    known: dict[str, PoolJob],
) -> None:
    folder, path = pool.root / f"work-{number}", pool.root / f"jobs-{number}.json"
    folder.mkdir()
    program = str(Path(__file__).with_name("queue_jobs.py"))
    left = list(jobs[number :: len(pool.machines)])
    while left:
        write_jobs(path, left)
        with (pool.root / f"push-{number}.log").open("ab") as log:
            pushing = subprocess.Popen(
                [sys.executable, program, str(path), str(pool.records), str(folder)],
                env=pool.machines[number].environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        pool.pushing[number] = pushing
        assert pushing.stdout
        for line in pushing.stdout:
            name, job_id = line.split()
            known[job_id] = names[name]
        if pushing.wait() not in {0, -signal.SIGKILL}:
            return
        # The job of a push that was killed exists once its record is written.
        for record in pool.ledger.list_jobs() if pushing.returncode else ():
            known.setdefault(record.id, names[record.name])
        pushed = {job.name for job in known.values()}
        left = [job for job in left if job.name not in pushed]


def _await_ends(pool: Pool, jobs: dict[str, PoolJob], deadline: float) -> None:
    """Return when all jobs are over, or when it is too late; the checks tell which are not."""
    left = set(jobs)
    while left and time.monotonic() < deadline:
        time.sleep(0.5)
        left = {job for job in left if not pool.ledger.get_state(job).terminal}


def _await_quiet(pool: Pool, jobs: dict[str, PoolJob]) -> None:
    """Return when no process, lease or entry of the jobs is left, or when it is too late."""
    deadline = time.monotonic() + SETTLE_SECONDS
    store = pool.ledger.store
    while time.monotonic() < deadline:
        busy = any(list_job_processes(job) for job in jobs)
        if not busy and not Leases(store).read() and not list(store.list(QUEUE_WAITING)):
            return
        time.sleep(0.5)


def _make_result(
    pool: Pool, jobs: dict[str, PoolJob], killer: Killer, watch: IdleWatch, cap: int, pushing: float
) -> Result:
    skews = {machine.host: machine.skew for machine in pool.machines}
    runs = read_runs(pool.ledger, pool.records, jobs, killer.killed, skews)
    events = {job_id: pool.ledger.list_events(job_id) for job_id in jobs}
    first = min(told[0].at for told in events.values())
    ends = [e.at for told in events.values() for e in told if e.state is JobState.COMPLETED]
    causes = [one.cause for job_id in jobs for one in pool.ledger.list_outcomes(job_id)]
    return Result(
        jobs=jobs,
        runs=runs,
        faults=find_faults(pool, runs, jobs, killer.killed, cap),
        kills=killer.done,
        watch=watch,
        makespan=max(ends, default=first) - first,
        arrivals={jobs[job_id].name: told[0].at - first for job_id, told in events.items()},
        preempted=causes.count(Cause.PREEMPTED),
        pushing=pushing,
        starts=list(_iter_starts(events, runs)),
    )


def _iter_starts(events: dict[str, list[JobEvent]], runs: Sequence[Run]) -> Iterator[float]:
    for job_id, told in events.items():
        created = next(event.at for event in told if event.state is JobState.CREATED)
        if begun := [run.start for run in runs if run.job_id == job_id]:
            yield min(begun) - created
