"""Know how many pods of a job fit on the machines of a cluster, as they are now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from prefect_bt.capacity.records import Demand, Lease, QueuedJob
from prefect_bt.substrates.protocol import CPUS, MEMORY, PodHost


class PodPlacement:
    """The machines of a cluster, with their pods and those that jobs are about to create."""

    def __init__(self, hosts: Sequence[PodHost], leases: Iterable[Lease]) -> None:
        self._hosts = hosts
        self._free = [dict(host.free) for host in hosts]
        self._jobs = [Counter(host.jobs) for host in hosts]
        self._counts: dict[tuple[Demand, int, bool], int] = {}
        self.total = {CPUS: 0, MEMORY: 0}
        requested = Counter[str]()
        for host in hosts:
            for name, amount in host.total.items():
                self.total[name] = self.total.get(name, 0) + amount
                requested[name] += amount - host.free.get(name, 0)
        for lease in leases:
            pods = self._count_pods(lease.job)
            requested.subtract({name: pods * amount for name, amount in lease.job.pod.items()})
        self.foreign = {name: max(0, amount) for name, amount in requested.items()}
        """What pods request that belong to no lease."""

    def count(self, job: QueuedJob, *, empty: bool = False) -> int:
        """Return how many pods of the job fit now; `empty`: if no other pods were there."""
        key = (job.demand, job.nodes, empty)
        if key not in self._counts:
            free = [host.total for host in self._hosts] if empty else self._free
            self._counts[key] = self._sum_fitting(job, free)
        return self._counts[key]

    def fits_without(self, leases: Iterable[Lease], job: QueuedJob) -> bool:
        """Return whether the pods of the job fit when those of the leases are gone."""
        free = [dict(one) for one in self._free]
        for lease in leases:
            self._release(lease.job, free)
        return self._sum_fitting(job, free) >= job.nodes

    def place(self, job: QueuedJob) -> None:
        """Give each pod of the job that is on no machine yet a place, if there is one."""
        self._counts = {key: count for key, count in self._counts.items() if key[2]}
        missing, pod = job.nodes - self._count_pods(job), job.pod
        for host, free, jobs in zip(self._hosts, self._free, self._jobs, strict=True):
            count = min(missing, _count_fitting(job, pod, host, free))
            if count > 0:
                _add(free, pod, -count)
                jobs[job.id] += count
                missing -= count

    def remove(self, job: QueuedJob) -> None:
        """Free the places of the job's pods."""
        self._counts = {key: count for key, count in self._counts.items() if key[2]}
        self._release(job, self._free)
        for jobs in self._jobs:
            del jobs[job.id]

    def _release(self, job: QueuedJob, free: Sequence[dict[str, int]]) -> None:
        for one, jobs in zip(free, self._jobs, strict=True):
            _add(one, job.pod, jobs[job.id])

    def _count_pods(self, job: QueuedJob) -> int:
        return sum(jobs[job.id] for jobs in self._jobs)

    def _sum_fitting(self, job: QueuedJob, free: Sequence[Mapping[str, int]]) -> int:
        pod = job.pod
        pairs = zip(self._hosts, free, strict=True)
        return sum(_count_fitting(job, pod, host, one) for host, one in pairs)


def _count_fitting(
    job: QueuedJob, pod: Mapping[str, int], host: PodHost, free: Mapping[str, int]
) -> int:
    if host.for_gpus and not job.demand.gpus:
        return 0
    counts = (free.get(name, 0) // amount for name, amount in pod.items())
    return max(0, min(counts, default=job.nodes))


def _add(amounts: dict[str, int], pod: Mapping[str, int], count: int) -> None:
    for name, amount in pod.items():
        amounts[name] = amounts.get(name, 0) + count * amount
