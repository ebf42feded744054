"""Know how many pods of a job fit on the machines of a cluster, as they are now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from prefect_bt.queue.records import Demand, Lease, QueuedJob
from prefect_bt.substrates.protocol import CPUS, MEMORY, PodHost


class PodPlacement:
    """The machines of a cluster, with their pods and those that jobs are about to create."""

    def __init__(self, hosts: Sequence[PodHost], leases: Iterable[Lease]) -> None:
        self._hosts = hosts
        self._free = [Counter(host.free) for host in hosts]
        self._jobs = [Counter(host.jobs) for host in hosts]
        self._kept: dict[int, float] = {}
        """Machine -> the time from which on it is kept for a job that waits."""
        self._counts: dict[tuple[Demand, int, bool, frozenset[int]], int] = {}
        self.total = Counter({CPUS: 0, MEMORY: 0})
        self.foreign = Counter[str]()
        """What pods request that belong to no lease, less what those of leases do elsewhere."""
        for host in hosts:
            self.total.update(host.total)
            self.foreign.update(host.total)
            self.foreign.subtract(host.free)
        for lease in leases:
            self.foreign.subtract(_multiply(lease.job.pod, self._count_pods(lease.job)))

    def count(self, job: QueuedJob, *, empty: bool = False, end: float = -inf) -> int:
        """Return how many pods of the job fit now; `empty`: if no other pods were there.

        `end`: when they end; they fit on no machine that is kept for another job before that.
        """
        key = (job.demand, job.nodes, empty, self._closed(end))
        if key not in self._counts:
            free = [host.total for host in self._hosts] if empty else self._free
            self._counts[key] = sum(self._list_counts(job, free, end))
        return self._counts[key]

    def fits_without(self, leases: Iterable[Lease], job: QueuedJob, end: float) -> bool:
        """Return whether the pods of the job fit when those of the leases are gone."""
        free = [Counter(one) for one in self._free]
        for lease in leases:
            self._release(lease.job, free)
        return sum(self._list_counts(job, free, end)) >= job.nodes

    def keep(self, job: QueuedJob, begin: float) -> None:
        """Keep machines for a job that waits until `begin`: those that have most of its pods free.

        Sums would let jobs behind it take the last free part of each machine for ever.
        """
        whole = self._list_counts(job, [host.total for host in self._hosts])
        free = {
            index: min((self._free[index][name] / n for name, n in job.pod.items()), default=1.0)
            for index, count in enumerate(whole)
            if count
        }
        missing = job.nodes
        for index in sorted(free, key=lambda index: (index in self._kept, -free[index], index)):
            if missing > 0:
                self._kept[index] = min(begin, self._kept.get(index, inf))
                missing -= whole[index]

    def place(self, job: QueuedJob, end: float) -> None:
        """Give each pod of the job that is on no machine yet a place, if there is one."""
        missing = job.nodes - self._count_pods(job)
        for index, fitting in enumerate(self._list_counts(job, self._free, end)):
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

    def _closed(self, end: float) -> frozenset[int]:
        return frozenset(index for index, begin in self._kept.items() if begin < end)

    def _list_counts(
        self, job: QueuedJob, free: Sequence[Mapping[str, int]], end: float = -inf
    ) -> list[int]:
        """Return how many pods of the job, which end at `end`, fit on each machine."""
        pod, closed = job.pod, self._closed(end)
        return [
            max(0, min((one.get(name, 0) // n for name, n in pod.items()), default=job.nodes))
            if host.total and (job.demand.gpus or not host.for_gpus) and index not in closed
            else 0
            for index, (host, one) in enumerate(zip(self._hosts, free, strict=True))
        ]


def _multiply(pod: Mapping[str, int], count: int) -> dict[str, int]:
    return {name: count * amount for name, amount in pod.items()}
