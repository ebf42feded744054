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
        self._free = [Counter(host.free) for host in hosts]
        self._jobs = [Counter(host.jobs) for host in hosts]
        self._counts: dict[tuple[Demand, int, bool], int] = {}
        self.total = Counter({CPUS: 0, MEMORY: 0})
        self.foreign = Counter[str]()
        """What pods request that belong to no lease, less what those of leases do elsewhere."""
        for host in hosts:
            self.total.update(host.total)
            self.foreign.update(host.total)
            self.foreign.subtract(host.free)
        for lease in leases:
            self.foreign.subtract(_multiply(lease.job.pod, self._count_pods(lease.job)))

    def count(self, job: QueuedJob, *, empty: bool = False) -> int:
        """Return how many pods of the job fit now; `empty`: if no other pods were there."""
        key = (job.demand, job.nodes, empty)
        if key not in self._counts:
            free = [host.total for host in self._hosts] if empty else self._free
            self._counts[key] = sum(self._list_counts(job, free))
        return self._counts[key]

    def fits_without(self, leases: Iterable[Lease], job: QueuedJob) -> bool:
        """Return whether the pods of the job fit when those of the leases are gone."""
        free = [Counter(one) for one in self._free]
        for lease in leases:
            self._release(lease.job, free)
        return sum(self._list_counts(job, free)) >= job.nodes

    def place(self, job: QueuedJob) -> None:
        """Give each pod of the job that is on no machine yet a place, if there is one."""
        missing = job.nodes - self._count_pods(job)
        for index, fitting in enumerate(self._list_counts(job, self._free)):
            count = max(0, min(missing, fitting))
            self._free[index].subtract(_multiply(job.pod, count))
            self._jobs[index][job.id] += count
            missing -= count
        self._counts = {key: count for key, count in self._counts.items() if key[2]}

    def remove(self, job: QueuedJob) -> None:
        """Free the places of the job's pods."""
        self._release(job, self._free)
        for jobs in self._jobs:
            del jobs[job.id]
        self._counts = {key: count for key, count in self._counts.items() if key[2]}

    def _release(self, job: QueuedJob, free: Sequence[Counter[str]]) -> None:
        for one, jobs in zip(free, self._jobs, strict=True):
            one.update(_multiply(job.pod, jobs[job.id]))

    def _count_pods(self, job: QueuedJob) -> int:
        return sum(jobs[job.id] for jobs in self._jobs)

    def _list_counts(self, job: QueuedJob, free: Sequence[Mapping[str, int]]) -> list[int]:
        """Return how many pods of the job fit on each machine."""
        pod = job.pod
        return [
            max(0, min((one.get(name, 0) // n for name, n in pod.items()), default=job.nodes))
            if host.total and (job.demand.gpus or not host.for_gpus)
            else 0
            for host, one in zip(self._hosts, free, strict=True)
        ]


def _multiply(pod: Mapping[str, int], count: int) -> dict[str, int]:
    return {name: count * amount for name, amount in pod.items()}
