"""Know how fast a pool could be: the area of the jobs, and the scheduler alone in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from queue_jobs import CAPPED, GPU_TYPE, PoolJob
from queue_records import Run

from prefect_bt.queue.records import Demand, Lease, Limit, Machine, QueuedJob
from prefect_bt.queue.schedule import make_schedule


def find_area_bound(runs: Sequence[Run], gpus: int) -> float:
    """Return the seconds below which no schedule is, with what killed jobs used as well."""
    return max(sum(run.area for run in runs) / gpus, *(run.end - run.start for run in runs))


class VirtualPool:
    """Machines in virtual time: a job starts as soon as the scheduler says so, and ends exactly."""

    def __init__(self, machines: int, gpus: int, cap: int) -> None:
        self._machines = [
            Machine(f"machine-{number}", "", 1 << 20, 1 << 50, {GPU_TYPE: gpus})
            for number in range(machines)
        ]
        self._limits = [Limit(GPU_TYPE, CAPPED, cap)]
        self._leases: list[Lease] = []
        self._waiting: list[QueuedJob] = []
        self._number = 0
        self._now = 0.0

    def run(self, jobs: Sequence[PoolJob], arrivals: Sequence[float]) -> float:
        """Return when the last job ends, if each is there from its time on."""
        self._lengths = {job.name: job.seconds for job in jobs}
        coming = [_queue(job, at) for job, at in zip(jobs, arrivals, strict=True)]
        coming.sort(key=lambda job: job.submitted_at)
        while coming or self._waiting or self._leases:
            arrival = coming[0].submitted_at if coming else inf
            self._now = min([arrival, *(self._end(lease) for lease in self._leases)])
            if self._now == inf:
                raise SystemExit("The scheduler starts none of the jobs that are left.")
            self._leases = [one for one in self._leases if self._end(one) > self._now]
            while coming and coming[0].submitted_at <= self._now:
                self._waiting.append(coming.pop(0))
            while self._decide():
                pass
        return self._now

    def _decide(self) -> bool:
        """Start and preempt jobs once; return whether there may be more to do."""
        ordered = sorted(self._waiting, key=lambda job: job.rank)
        schedule = make_schedule(self._machines, self._leases, ordered, self._limits, now=self._now)
        for start in schedule.starts:
            self._number += 1
            self._waiting.remove(start.job)
            self._leases.append(Lease(self._number, start.job, start.host, self._now))
        for lease in schedule.preempted:
            self._leases.remove(lease)
            self._waiting.append(replace(lease.job, since=self._now))
        return bool(schedule.preempted)

    def _end(self, lease: Lease) -> float:
        return lease.at + self._lengths[lease.job.id]


def _queue(job: PoolJob, at: float) -> QueuedJob:
    return QueuedJob(
        id=job.name,
        demand=Demand(job.gpus, GPU_TYPE),
        submitted_at=at,
        priority=job.priority,
        team=job.team,
        spot=job.spot,
        run_time=job.run_time,
    )
