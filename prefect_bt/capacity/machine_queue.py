"""The queue as one machine sees it: leases of jobs whose processes are gone end, others begin.

<state_dir>/queue.lock      flock of the process that decides for this machine
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from prefect_bt.capacity.leases import Leases
from prefect_bt.capacity.machines import (
    REPORT_INTERVAL,
    is_present,
    list_limits,
    list_machines,
    measure_machine,
    report_machine,
)
from prefect_bt.capacity.records import Demand, Lease, Machine, QueuedJob
from prefect_bt.capacity.schedule import Schedule, Start, make_schedule
from prefect_bt.capacity.waiting_jobs import list_waiting_jobs
from prefect_bt.errors import StateError
from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.host.job_lock import JobLock, has_lock_file, is_job_alive, is_owned
from prefect_bt.ledger.ledger import Ledger

IDLE_SECONDS: Final = 10.0
"""Seconds after which a process decides again although no lease and no waiting job has changed."""


class MachineQueue:
    """Decides which jobs of a store start on this machine.

    Every lease of this machine belongs to a job whose lock a process held when the lease began. Its
    jobs run here, or in a cluster that it reaches.
    """

    def __init__(
        self,
        ledger: Ledger,
        state_dir: Path,
        *,
        cpus: int | None = None,
        memory: int | None = None,
        substrates: tuple[str, ...] = ("local",),
    ) -> None:
        self.read_cluster: Callable[[str], Machine | None] = lambda cluster_id: None
        """Returns the cluster as it is now; None if this machine does not reach it."""
        self._clusters = set[str]()
        """IDs of the clusters in the last schedule that this machine reaches."""
        self.machine = measure_machine(state_dir, cpus=cpus, memory=memory, substrates=substrates)
        self._ledger, self._store, self.state_dir = ledger, ledger.store, state_dir
        self._leases = Leases(ledger.store)
        self._idle: tuple[object, float] = None, 0.0
        """The leases and jobs of the last schedule that started nothing here, and its time."""

    def report(self) -> None:
        """Tell the other machines that this one takes jobs, and what it offers."""
        self.machine = replace(self.machine, seen_at=time.time())
        report_machine(self._store, self.machine)

    @contextmanager
    def lock(self) -> Generator[None]:
        """Decide alone on this machine; blocks while another process does."""
        ensure_private_folder(self.state_dir)
        path = self.state_dir / "queue.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def release_ended(self, *, ended: str = "") -> bool:
        """End the leases of this machine's jobs that have no process any more. Needs the lock.

        `ended`: ID of a job that is over although a process still holds its lock. Return whether
        any job had a lease here.
        """
        mine = [lease for lease in self._leases.read() if lease.host == self.machine.host]
        for lease in mine:
            over = lease.job.id == ended
            if over or not is_job_alive(self.state_dir, lease.job.id):
                self._release(lease, over=over)
        self._leases.prune()
        return bool(mine)

    def _release(self, lease: Lease, *, over: bool) -> None:
        """End the lease, unless a process recovers the job at this moment."""
        claim = JobLock(self.state_dir, timeout=0.0)
        try:
            if not over and has_lock_file(self.state_dir, lease.job.id):
                claim.acquire(lease.job.id)
            self._leases.release(lease)
        except StateError:
            return
        finally:
            claim.release()

    def match_gpus(self, demand: Demand) -> Demand:
        """Return the demand with this machine's GPUs if no machine has the type that it names."""
        own = self.machine.gpus
        if not (demand.gpus and own) or demand.gpu_type in own:
            return demand
        known = list_machines(self._store)
        machines = [one for one in known if is_present(one) and not one.is_cluster]
        if any(demand.gpu_type in one.gpus for one in machines):
            return demand
        return replace(demand, gpu_type=max(own, key=lambda kind: own[kind]))

    def find_lease(self, job_id: str) -> Lease | None:
        """Return the job's lease on this machine. Needs `release_ended`."""
        return self._leases.find(job_id, self.machine.host)

    def admit(self, job: QueuedJob, *, waits: bool = True) -> Lease | Schedule:
        """Begin a lease of the job if it may start here now, else return the schedule.

        Needs the lock and `release_ended`. The caller owns the job. `waits`: False for a job that
        starts whether there is room or not.
        """
        while True:
            if waits:
                others = [one for one in list_waiting_jobs(self._store) if one.id != job.id]
                schedule = self._make_schedule([*others, job])
                if not any(s.job.id == job.id for s in self._starts_here(schedule)):
                    return schedule
            if lease := self._leases.create(job, host=self.machine.host, at=time.time()):
                return lease
            self._leases.read()  # another machine decided meanwhile

    def iter_admitted(self) -> Iterator[Lease]:
        """Yield a lease for each waiting job that may start here now. Needs the lock.

        The caller starts the job, or calls `give_back`.
        """
        skipped = set[str]()
        while waiting := [j for j in list_waiting_jobs(self._store) if j.id not in skipped]:
            seen = ([lease.number for lease in self._leases.active], waiting)
            if self._idle[0] == seen and time.monotonic() < self._idle[1] + IDLE_SECONDS:
                return
            mine = self._choose(waiting)
            if not mine:
                self._idle = seen, time.monotonic()
                return
            for job in mine:
                lease = self._leases.create(job, host=self.machine.host, at=time.time())
                if lease is None:  # another machine decided meanwhile
                    break
                skipped.add(job.id)
                yield lease
            self._leases.read()

    def _choose(self, waiting: Sequence[QueuedJob]) -> list[QueuedJob]:
        """Return the jobs that may start here, and ask spot jobs for their places."""
        schedule = self._make_schedule(waiting)
        for lease in schedule.preempted:
            self._ledger.controls.request_preemption(lease.job.id, by="the queue")
        starts = [start.job for start in self._starts_here(schedule)]
        # A flow that waits in its own process takes the job itself.
        return [job for job in starts if not is_owned(self.state_dir, job.id)]

    def _starts_here(self, schedule: Schedule) -> list[Start]:
        here, clusters = self.machine.host, self._clusters
        starts = [one for one in schedule.starts if one.host == here or one.host in clusters]
        return [start for start in starts if start.job.host in {"", here}]

    def give_back(self, lease: Lease) -> None:
        """End a lease whose job was not started."""
        self._leases.release(lease)

    def _make_schedule(self, waiting: Sequence[QueuedJob]) -> Schedule:
        now, own = time.time(), [self.machine, *self._read_clusters(waiting)]
        known = {one.host: one for one in list_machines(self._store)}
        if self.machine.host not in known:  # others show what it offers
            report_machine(self._store, replace(self.machine, seen_at=0.0))
        for cluster in own[1:]:
            before = known.get(cluster.host)
            if before is None or now - before.seen_at >= REPORT_INTERVAL:
                report_machine(self._store, cluster)
        hosts = {one.host for one in own}
        others = [x for x in known.values() if x.host not in hosts and is_present(x, now)]
        ordered = sorted(waiting, key=lambda job: job.rank)
        limits = list_limits(self._store)
        return make_schedule([*own, *others], self._leases.active, ordered, limits, now=now)

    def _read_clusters(self, waiting: Sequence[QueuedJob]) -> list[Machine]:
        """Return the clusters of the waiting jobs that this machine reaches."""
        read = [self.read_cluster(one) for one in {job.cluster for job in waiting if job.cluster}]
        found = [cluster for cluster in read if cluster is not None]
        self._clusters = {cluster.host for cluster in found}
        return found
