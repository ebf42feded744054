"""The queue as one machine sees it: leases of jobs whose processes are gone end, others begin.

<state_dir>/queue.lock      flock of the process whose turn it is to decide for this machine
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Container, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from prefect_bt.errors import NotFoundError, StateError
from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.host.job_lock import (
    JobLock,
    describe_lock_holder,
    has_lock_file,
    host_id,
    is_job_alive,
    is_owned,
    try_lock,
)
from prefect_bt.ledger.job_objects import DAMAGED
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.object_store.clock import StoreClock
from prefect_bt.queue.leases import Leases
from prefect_bt.queue.machines import (
    REPORT_INTERVAL,
    choose_gpu_type,
    is_present,
    list_limits,
    list_machines,
    measure_machine,
    report_machine,
)
from prefect_bt.queue.records import Demand, Lease, Machine, QueuedJob
from prefect_bt.queue.schedule import Schedule, Start, make_schedule
from prefect_bt.queue.waiting_jobs import (
    is_still_waiting,
    list_waiting_jobs,
    remove_waiting_job,
    select_unclaimed,
)

_logger = logging.getLogger(__name__)
IDLE_SECONDS: Final = 3.0
"""Seconds after which a process decides again although no lease and no waiting job has changed."""
MAX_CPU_SHARE: Final = 0.01
"""Most of a core for decisions that start nothing: those of a thousand jobs take longer."""
LATE_SECONDS: Final = 2.0
"""Seconds that another machine may take to start a job, before this one does it if it can."""
TURN_SECONDS: Final = 2.0
"""Seconds to wait for the process whose turn it is."""
_TURN_POLL: Final = 0.02
HEAD: Final = 10
"""Jobs at the head of the queue whose records are checked although nothing starts."""


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
        host_id(state_dir)  # from now on the machine has an ID
        self.machine = measure_machine(state_dir, cpus=cpus, memory=memory, substrates=substrates)
        self._ledger, self._store, self.state_dir = ledger, ledger.store, state_dir
        self._leases = Leases(ledger.store)
        self.clock = StoreClock(ledger.store)
        self._obstacle = ""
        """Sentence about the process that did not end its turn; "" for none."""
        self._unreadable = dict[str, int]()
        """Job -> event of its entry, for jobs whose records cannot be read."""
        self._problems, self._told = list[str](), set[str]()
        self._assigned = dict[str, float]()
        """Other machine -> since when it should have started a job."""
        self.has_waiting = False
        """Whether the last `choose` found jobs that wait."""
        self._idle: tuple[object, float] = None, 0.0
        """The leases and jobs of the last schedule that started nothing here, and until when it
        holds."""

    def report(self) -> None:
        """Tell the other machines that this one takes jobs, and what it offers."""
        self.machine = replace(self.machine, seen_at=time.time())
        report_machine(self._store, self.machine)

    @contextmanager
    def take_turn(self, *, ended: str = "") -> Generator[bool]:
        """Decide while no other process of this machine does, or after a short wait beside it.

        End the leases of this machine's jobs that have no process any more, and yield whether any
        job had one. `ended`: ID of a job that is over although a process still holds its lock.

        Leases keep two decisions apart; a turn only saves repetitions. So a process that was
        stopped in its turn stops no other: a warning names it.
        """
        ensure_private_folder(self.state_dir)
        path = self.state_dir / "queue.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + TURN_SECONDS
            while not (is_mine := try_lock(descriptor)) and time.monotonic() < deadline:
                time.sleep(_TURN_POLL)
            obstacle = "" if is_mine else f"{describe_lock_holder(path)} does not release {path}"
            if obstacle and obstacle != self._obstacle:
                _logger.warning("%s. Jobs are started all the same.", obstacle)
            self._obstacle = obstacle
            yield self._release_ended(ended)
        finally:
            os.close(descriptor)

    def _release_ended(self, ended: str) -> bool:
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

    def match_gpus(self, demand: Demand, *, only_here: bool = False) -> Demand:
        """Return the demand with the type of GPUs that the job gets (choose_gpu_type).

        `only_here`: whether no other machine may run the job.
        """
        own = self.machine
        if not demand.gpus or demand.gpu_type in own.gpus:
            return demand
        others = list[Machine]()
        if not only_here:
            machines, now = list_machines(self._store), self.clock.now()
            others = [one for one in machines if is_present(one, now) and not one.is_cluster]
        kind = choose_gpu_type(demand.gpu_type, demand.gpus, own, others)
        return replace(demand, gpu_type=kind)

    def find_lease(self, job_id: str) -> Lease | None:
        """Return the job's lease on this machine, as of the beginning of the turn."""
        return self._leases.find(job_id, self.machine.host)

    def admit(self, job: QueuedJob, *, waits: bool = True) -> Lease | Schedule:
        """Begin a lease of the job if it may start here now, else return the schedule.

        The caller owns the job. `waits`: False for a job that starts whether there is room or not.
        """
        while True:
            if waits:
                others = [one for one in self._list_waiting() if one.id != job.id]
                schedule = self._make_schedule([*others, job])
                if not any(s.job.id == job.id for s in self._starts_here(schedule)):
                    return schedule
            if lease := self.begin_lease(job):
                return lease

    def begin_lease(self, job: QueuedJob) -> Lease | None:
        """Begin a lease; None, and read the leases again, if another decision was made meanwhile.

        The caller owns the job: a lease whose job has no owner ends.
        """
        lease = self._leases.create(job, host=self.machine.host)
        if lease is None:
            self._leases.read()
        return lease

    def end_lease(self, lease: Lease) -> None:
        """End the lease of a job that is not started here."""
        self._leases.release(lease)

    def choose(self, skipped: Container[str]) -> list[QueuedJob]:
        """Return the waiting jobs that may start here now, and ask spot jobs for their places.

        `skipped`: IDs of jobs that count as not waiting.
        """
        self.has_waiting = False
        while waiting := [job for job in self._list_waiting() if job.id not in skipped]:
            self.has_waiting = True
            seen = ([lease.number for lease in self._leases.active], waiting)
            if self._idle[0] == seen and time.monotonic() < self._idle[1]:
                return []
            used = time.thread_time()
            schedule = self._make_schedule(waiting)
            # A spot job ends for a job that waits, not for an entry that was left behind.
            if not all(self.check_waiting(wait.job) for wait in schedule.waits if wait.stops):
                continue
            for lease in schedule.preempted:
                self._ledger.controls.request_preemption(lease.job.id, by="the queue")
            # A flow that waits in its own process takes the job itself.
            starts = [start.job for start in self._starts_here(schedule)]
            if not starts and (late := self._find_late_machines(schedule)):
                schedule = self._make_schedule(waiting, without=late)
                starts = [start.job for start in self._starts_here(schedule)]
            starts = [job for job in starts if not is_owned(self.state_dir, job.id)]
            if not starts:
                pause = max(IDLE_SECONDS, (time.thread_time() - used) / MAX_CPU_SHARE)
                self._idle = seen, time.monotonic() + pause
            return starts
        return []

    def _find_late_machines(self, schedule: Schedule) -> set[str]:
        """Return the machines that do not take their jobs, for which this one starts what it can.

        Such a machine counts as present until its absence shows, but its worker is stopped or dead.
        """
        now, own = time.monotonic(), {self.machine.host, *self._clusters}
        hosts = {start.host for start in schedule.starts} - own
        self._assigned = {host: self._assigned.get(host, now) for host in hosts}
        return {host for host, since in self._assigned.items() if now - since > LATE_SECONDS}

    def check_waiting(self, job: QueuedJob) -> bool:
        """Return whether the job waits; remove an entry that was left behind.

        A job whose records cannot be read counts as not waiting from now on.
        """
        try:
            self._ledger.get_job(job.id)
            if is_still_waiting(self._ledger, job):
                return True
        except NotFoundError:  # an entry is written after the job: the job was deleted
            pass
        except DAMAGED as error:
            self._unreadable[job.id] = job.event
            self.add_problem(job, f"is skipped: its records cannot be read ({error!r})")
            return False
        remove_waiting_job(self._store, job.id, through=job.event)
        return False

    def add_problem(self, job: QueuedJob, problem: str) -> None:
        """Keep a sentence about a job for `pop_problems`, unless it was told before."""
        sentence = f"job {job.id} {problem}"
        if sentence not in self._told:
            self._told.add(sentence)
            self._problems.append(sentence)

    def pop_problems(self) -> list[str]:
        """Return the sentences that were not told yet."""
        problems, self._problems = self._problems, []
        return problems

    def list_head(self) -> list[QueuedJob]:
        """Return the first jobs of the queue."""
        return self._list_waiting()[:HEAD]

    def _list_waiting(self) -> list[QueuedJob]:
        waiting = list_waiting_jobs(self._store)
        waiting = [job for job in waiting if self._unreadable.get(job.id) != job.event]
        claimed = {lease.job.id for lease in self._leases.active}
        if any(job.id in claimed for job in waiting):
            now = self.clock.now()
            return select_unclaimed(self._ledger, waiting, self._leases.active, now)
        return waiting

    def _starts_here(self, schedule: Schedule) -> list[Start]:
        here, clusters = self.machine.host, self._clusters
        starts = [one for one in schedule.starts if one.host == here or one.host in clusters]
        return [start for start in starts if start.job.host in {"", here}]

    def _make_schedule(
        self, waiting: Sequence[QueuedJob], *, without: Collection[str] = ()
    ) -> Schedule:
        now, own = self.clock.now(), [self.machine, *self._read_clusters(waiting)]
        known = {one.host: one for one in list_machines(self._store)}
        if self.machine.host not in known:  # others show what it offers
            report_machine(self._store, replace(self.machine, seen_at=0.0))
        for cluster in own[1:]:
            before = known.get(cluster.host)
            if before is None or now - before.seen_at >= REPORT_INTERVAL:
                report_machine(self._store, cluster)
        hosts = {*without, *(one.host for one in own)}
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
