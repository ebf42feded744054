"""Check what a pool of machines promises, from the records of the jobs and of the store."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise

from queue_jobs import CAPPED, PoolJob
from queue_machines import Pool, list_job_processes
from queue_records import Run, find_peak

from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import INDEX_JOBS, QUEUE_WAITING
from prefect_bt.queue.leases import Leases


def find_faults(
    pool: Pool,
    runs: Sequence[Run],
    jobs: Mapping[str, PoolJob],
    killed: Mapping[str, Sequence[float]],
    cap: int,
) -> list[str]:
    """Return a sentence for each promise that does not hold. `killed`: when all of a job was."""
    faults = [*_check_gpus(runs, pool.gpus), *_check_cap(runs, cap), *_check_store(pool)]
    faults += _check_garbage(pool)
    for job_id, job in jobs.items():
        mine = [run for run in runs if run.job_id == job_id]
        faults += [f"{job.name} ({job_id}): {fault}" for fault in _check_job(pool.ledger, job_id)]
        deaths = len(killed.get(job_id, ()))
        faults += [f"{job.name} ({job_id}): {fault}" for fault in _check_runs(mine, deaths)]
        if left := list_job_processes(job_id):
            faults.append(f"{job.name} ({job_id}): processes {left} are left")
    return faults


def _check_gpus(runs: Sequence[Run], gpus: int) -> Iterator[str]:
    """Yield a fault for each machine that had too many GPUs in use, or one GPU used twice."""
    for host in sorted({run.host for run in runs}):
        here = [run for run in runs if run.host == host]
        if (most := find_peak(here)) > gpus:
            yield f"{most} of {gpus} GPUs were in use on {host}"
        for one, other in combinations(here, 2):
            shared = one.devices & other.devices
            if shared and min(one.end, other.end) > max(one.start, other.start):
                yield f"GPUs {sorted(shared)} had {one.job_id} and {other.job_id} at once"


def _check_cap(runs: Sequence[Run], cap: int) -> Iterator[str]:
    """Yield a fault if the capped team used more GPUs at once, spot jobs aside."""
    counted = [run for run in runs if run.job.team == CAPPED and not run.job.spot]
    if (most := find_peak(counted)) > cap:
        yield f"team {CAPPED} used {most} GPUs at once; its limit is {cap}"


def _check_store(pool: Pool) -> Iterator[str]:
    """Yield a fault for each lease and each entry of the queue that is left."""
    store = pool.ledger.store
    for lease in Leases(store).read():
        yield f"lease {lease.number} of {lease.job.id} is active"
    for info in store.list(QUEUE_WAITING):
        yield f"{info.key} is left"


def _check_garbage(pool: Pool) -> Iterator[str]:
    """Yield a fault for each ID without a job, and for what `gc` finds on any machine."""
    jobs = {record.id for record in pool.ledger.list_jobs()}
    for info in pool.ledger.store.list(INDEX_JOBS):
        if info.key.rpartition("/")[2] not in jobs:
            yield f"{info.key} has no job"
    for machine in pool.machines:
        machine.run("gc", "--yes")  # of what was killed
        for found in json.loads(machine.run("gc", "--dry-run", "-o", "json")):
            yield f"gc finds on {machine.name}: {found}"


def _check_job(ledger: Ledger, job_id: str) -> Iterator[str]:
    """Yield a fault unless the job completed exactly once, in one Prefect run."""
    events = ledger.list_events(job_id)
    completed = [event for event in events if event.state is JobState.COMPLETED]
    if len(completed) != 1 or events[-1].state is not JobState.COMPLETED:
        yield f"{events[-1].state.short_name}, {len(completed)} times completed: " + (
            events[-1].message
        )
    outcomes = [one for one in ledger.list_outcomes(job_id) if one.state is JobState.COMPLETED]
    if len(outcomes) != 1:
        yield f"{len(outcomes)} attempts completed"
    if len(found := ledger.runs.list(job_id)) != 1:
        yield f"it has {len(found)} Prefect runs"


def _check_runs(runs: Sequence[Run], deaths: int) -> Iterator[str]:
    """Yield a fault if the command never ended by itself, or ran twice.

    `deaths`: how often all of the job was killed, perhaps after its end and before its record.
    """
    if not any(run.whole for run in runs):
        yield "its command never came to its end"
    if (whole := sum(run.whole for run in runs)) > 1 + deaths:
        yield f"its command came to its end {whole} times"
    for number, times in Counter(run.attempt for run in runs).items():
        if times > 1:
            yield f"attempt {number} started its command {times} times"
    ordered = sorted(runs, key=lambda run: run.start)
    for one, other in pairwise(ordered):
        if other.start < one.end:
            yield f"attempts {one.attempt} and {other.attempt} ran at once"
