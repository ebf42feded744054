"""Know what is free on a machine, now and at each later time at which a job is known to end."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from prefect_bt.queue.pod_placement import PodPlacement
from prefect_bt.queue.records import Demand, Lease, Machine, QueuedJob
from prefect_bt.substrates.protocol import CPUS, MEMORY

MOST_RESERVATIONS: Final = 50
"""Jobs that may reserve a machine. Behind them no job starts there: this keeps a walk cheap."""


class Timeline:
    """The free amounts of each resource from each time on at which they change."""

    def __init__(self, total: Mapping[str, int], now: float) -> None:
        self.times: list[float] = [now]
        self.free: list[dict[str, int]] = [dict(total)]

    def take(self, amounts: Mapping[str, int], start: float, end: float, sign: int = 1) -> None:
        """Make the amounts unavailable from `start` until `end`; with the sign -1 available."""
        first, last = self._step_at(start), self._step_at(end)
        for free in self.free[first:last]:
            for name, amount in amounts.items():
                free[name] = free.get(name, 0) - sign * amount

    def fits(self, need: Mapping[str, int], end: float) -> bool:
        """Return whether the amounts are free from now until `end`."""
        if not contains(self.free[0], need):
            return False
        steps = max(1, bisect_left(self.times, end))
        return all(contains(free, need) for free in self.free[1:steps])

    def find_start(self, need: Mapping[str, int], run_time: float) -> float | None:
        """Return the first time from which the amounts are free for the run time."""
        start: float | None = None
        for time, until, free in zip(self.times, [*self.times[1:], inf], self.free, strict=True):
            if not contains(free, need):
                start = None
                continue
            start = time if start is None else start
            if until >= start + run_time:
                return start
        return None

    def copy(self) -> Timeline:
        """Return a timeline that changes independently of this one."""
        other = Timeline({}, self.times[0])
        other.times, other.free = list(self.times), [dict(free) for free in self.free]
        return other

    def _step_at(self, time: float) -> int:
        """Return the index of the step that begins at this time; make it if there is none."""
        index = bisect_left(self.times, time)
        if time < inf and (index == len(self.times) or self.times[index] != time):
            self.times.insert(index, time)
            self.free.insert(index, dict(self.free[index - 1]))
        return index


class Room:
    """A machine or a cluster: what is free, and what the jobs of the queue reserved there."""

    def __init__(self, machine: Machine, leases: Sequence[Lease], now: float) -> None:
        self.host, self.name, self.now = machine.host, machine.name, now
        self.substrates, self.leases = machine.substrates, leases
        self.total = {**machine.gpus, CPUS: round(1000 * machine.cpus), MEMORY: machine.memory}
        self.free = dict(self.total)
        self.pods: PodPlacement | None = None
        if machine.is_cluster:
            self.pods = PodPlacement(machine.pod_hosts, leases)
            self.total, foreign = dict(self.pods.total), self.pods.foreign
            self.free = {name: n - foreign[name] for name, n in self.total.items()}
        self.timeline = Timeline(self.free, now)
        self.spot: list[Lease] = []
        self._leaving: Counter[str] = Counter()
        """What stopped jobs still hold that no job ahead will get."""
        self._reservations = 0
        self._needs: dict[Demand, dict[str, int]] = {}
        for lease in sorted(leases, key=lambda lease: (-lease.at, -lease.number)):
            self.hold(lease.job, lease_end(lease, now))
            if lease.job.spot:
                self.spot.append(lease)

    @property
    def full(self) -> bool:
        """Return whether no further job may start: there are too many reservations to compare."""
        return self._reservations >= MOST_RESERVATIONS

    def could_run(self, job: QueuedJob) -> bool:
        """Return whether the job can run here once the machine is free."""
        if self.pods is not None:
            return job.cluster == self.host and self.pods.count(job, empty=True) >= job.nodes
        return self.allows(job) and self.has_enough(job)

    def allows(self, job: QueuedJob) -> bool:
        """Return whether the job may run on this machine, whatever the machine has."""
        return job.host in {"", self.host} and job.substrate in self.substrates

    def has_enough(self, job: QueuedJob) -> bool:
        """Return whether the machine has the GPUs of the job, and the minimum of one node."""
        gpus = self.total.get(job.demand.gpu_type, 0) if job.demand.gpus else 0
        has_cpus = self.total[CPUS] >= 1000 * job.node_cpus
        return gpus >= job.demand.gpus and has_cpus and self.total[MEMORY] >= job.node_memory

    def need(self, demand: Demand) -> dict[str, int]:
        """Return what a job takes here, without zeros; no more CPUs and memory than there are.

        The nodes of a gang share the machine, and a GPU's share was planned for another one.
        """
        if demand not in self._needs:
            most = {CPUS: self.total[CPUS], MEMORY: self.total[MEMORY]}
            amounts = {n: min(amount, most.get(n, amount)) for n, amount in demand.amounts.items()}
            self._needs[demand] = {name: amount for name, amount in amounts.items() if amount > 0}
        return self._needs[demand]

    def fits(self, job: QueuedJob) -> bool:
        """Return whether the job delays none that reserved if it starts when the stops are done."""
        end = self.now + run_time(job)
        if self.full or not self.has_room_for_pods(job, end):
            return False
        return self.timeline.fits(self.need(job.demand), end)

    def has_room_for_pods(self, job: QueuedJob, end: float = -inf) -> bool:
        """Return whether each pod of the job fits on a machine of the cluster until `end`."""
        return self.pods is None or self.pods.count(job, end=end) >= job.nodes

    def admits(self, job: QueuedJob) -> bool:
        """Return whether the job may start now: it fits without what spot jobs still hold."""
        need = self.need(job.demand)
        now = {name: amount + self._leaving[name] for name, amount in need.items()}
        return contains(self.free, now) and self.fits(job)

    def hold(self, job: QueuedJob, end: float, sign: int = 1) -> None:
        """Give the job its amounts from now on; with the sign -1 take them back."""
        need = self.need(job.demand)
        self.timeline.take(need, self.now, end, sign)
        for name, amount in need.items():
            self.free[name] = self.free.get(name, 0) - sign * amount
        if self.pods is not None:
            self.pods.place(job, end) if sign > 0 else self.pods.remove(job)

    def find_start(self, job: QueuedJob) -> float | None:
        """Return when the job can start here; None if that is unknown."""
        start = self.timeline.find_start(self.need(job.demand), run_time(job))
        return None if start == self.now and not self.has_room_for_pods(job) else start

    def reserve(self, job: QueuedJob, start: float | None) -> None:
        """Keep the amounts of the job from `start` on; without a known start from now on."""
        begin, length = (self.now, inf) if start is None else (start, run_time(job))
        self.timeline.take(self.need(job.demand), begin, begin + length)
        self._reservations += 1
        if self.pods is not None:
            self.pods.keep(job, begin)

    def find_spot_leases(self, job: QueuedJob) -> list[Lease] | None:
        """Return the youngest spot leases that must end for the job to start now; None: no way."""
        if self.full or not self.spot or not self._fits_without(self.spot, job):
            return None
        stopped = list(self.spot)
        for lease in reversed(self.spot):
            rest = [other for other in stopped if other is not lease]
            if self._fits_without(rest, job):
                stopped = rest
        return stopped

    def replace(self, leases: Sequence[Lease], job: QueuedJob) -> None:
        """Give the job the place of the spot leases. What they leave beside it is not free yet."""
        for lease in leases:
            self.spot.remove(lease)
            self.hold(lease.job, lease_end(lease, self.now), sign=-1)
            self._leaving.update(self.need(lease.job.demand))
        self.hold(job, self.now + run_time(job))
        # The operator drops what is not above zero.
        self._leaving -= Counter(self.need(job.demand))

    def _fits_without(self, leases: Sequence[Lease], job: QueuedJob) -> bool:
        trial = Timeline(self.timeline.free[0], self.now)
        need, end = self.need(job.demand), self.now + run_time(job)
        for lease in leases:
            trial.take(self.need(lease.job.demand), self.now, inf, sign=-1)
        # Most jobs fail here, before the copy of the whole timeline.
        if not trial.fits(need, end):
            return False
        trial = self.timeline.copy()
        for lease in leases:
            ends = lease_end(lease, self.now)
            trial.take(self.need(lease.job.demand), self.now, ends, sign=-1)
        fits = self.pods is None or self.pods.fits_without(leases, job, end)
        return fits and trial.fits(need, end)


def contains(free: Mapping[str, int], need: Mapping[str, int]) -> bool:
    """Return whether all amounts are free. `need` has no zeros: what is below zero is no matter."""
    for name, amount in need.items():  # noqa: SIM110 - a generator takes twice as long
        if free.get(name, 0) < amount:
            return False
    return True


def run_time(job: QueuedJob) -> float:
    """Return the seconds that the job runs; infinity if that is unknown."""
    return job.run_time if job.run_time and job.run_time > 0 else inf


def lease_end(lease: Lease, now: float) -> float:
    """Return when the lease ends; infinity if that is unknown or should have been by now."""
    return inf if lease.ends_at is None or lease.ends_at <= now else lease.ends_at
