"""Take up the jobs of a machine that is gone.

While a job runs, its machine writes to the store at least twice a minute: its flow marks the job,
and its nodes are published. A machine that writes nothing for Settings.departed_after seconds, as
this process itself has observed without a gap, has departed. No clock is compared, and the time in
which the store does not answer does not count. Pods are adopted; the attempt of other nodes ends,
and the job waits for a machine again. If the machine comes back, its claim has been followed, and
it ends what it still runs (docs/decisions/016 and 027).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Final

from prefect_bt.attempts.job_context import JobContext, open_job_context
from prefect_bt.attempts.lifecycle import (
    decide_job_retry,
    finalize_unfinished_attempts,
    was_preempted,
)
from prefect_bt.errors import NotFoundError, PrefectBtError, StateError, StoreError
from prefect_bt.host.job_lock import JobLock, host_id
from prefect_bt.job_metrics.archive import PublishedMetrics, archive_metrics
from prefect_bt.jobs.reconcile import finalize_abandoned_job, report_end
from prefect_bt.jobs.starting.acceptance import enter_queue
from prefect_bt.jobs.starting.cluster_reader import find_cluster
from prefect_bt.jobs.starting.launcher import hand_over_job
from prefect_bt.jobs.starting.queued_runs import show_queued_job
from prefect_bt.jobs.starting.start_queued import open_machine_queue
from prefect_bt.ledger.fencing_epochs import Epoch
from prefect_bt.ledger.job_objects import DAMAGED
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.node_objects import find_last_sign
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.live_logs import list_published_logs
from prefect_bt.logs.log_archive import LogArchiver
from prefect_bt.object_store.clock import StoreClock
from prefect_bt.queue.leases import Leases
from prefect_bt.queue.machines import is_present, list_machines
from prefect_bt.queue.records import Lease
from prefect_bt.settings import Settings
from prefect_bt.substrates import CLUSTERS
from prefect_bt.text.durations import format_duration

MAX_GAP: Final = 120.0
"""Seconds between two looks after which the observation begins again: this process was stopped."""


class DepartedJobs:
    """Observes the machines of the running jobs of a store."""

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger, self._settings, self._clock = ledger, settings, clock
        self._store, self._store_clock = ledger.store, StoreClock(ledger.store)
        self._leases = Leases(ledger.store)
        self._host = host_id(settings.state_dir.absolute())
        self._signs = dict[int, tuple[float, float]]()
        """Lease -> date of the last sign of its machine, and when this process saw it first."""
        self._looked_at = 0.0

    def take_up(self) -> Iterator[tuple[str, str]]:
        """Take up the jobs of departed machines; yield each job's ID and what was done. StoreError.

        Call it more often than every MAX_GAP seconds.
        """
        if not self._settings.departed_after:
            return
        silent = self._find_silent_leases()
        for lease in silent:
            try:
                done = self._take_up(lease)
            except (StateError, NotFoundError):  # another machine was first
                continue
            except StoreError:
                raise
            except (PrefectBtError, OSError, *DAMAGED) as error:
                done = f"could not be taken up: {error!r}"
            if done:
                yield lease.job.id, done

    def _find_silent_leases(self) -> list[Lease]:
        now, before = self._clock(), self._signs
        # An error, or a process that was stopped, begins the observation again.
        self._signs = {}
        known = before if now - self._looked_at < MAX_GAP else {}
        present = {
            one.host
            for one in list_machines(self._store)
            if is_present(one, self._store_clock.now())
        }
        signs, silent = dict[int, tuple[float, float]](), list[Lease]()
        for lease in self._leases.read():
            if lease.host in present or lease.host == self._host.partition(":")[2]:
                continue
            job = lease.job
            in_pods = bool(job.cluster)
            sign = find_last_sign(self._store, job.project_id, job.id, in_pods=in_pods)
            if not sign:  # its release marks no job
                continue
            first = known.get(lease.number, (0.0, now))
            signs[lease.number] = first if first[0] == sign else (sign, now)
            if now - signs[lease.number][1] >= self._settings.departed_after:
                silent.append(lease)
        self._signs, self._looked_at = signs, now
        return silent

    def _take_up(self, lease: Lease) -> str:
        record = self._ledger.get_job(lease.job.id)
        held = self._ledger.get_epochs(record.id).find_active()
        state = self._ledger.get_state(record.id)
        moves = record.serving is None and not record.host
        if held is None or state.terminal or state is JobState.PENDING or not moves:
            return ""
        if held.host.partition(":")[2] != lease.host:
            return ""
        silence = format_duration(self._settings.departed_after)
        reason = f"the machine {held.machine} has been silent for {silence}"
        if record.substrate in CLUSTERS:
            return self._adopt(record, held, lease, reason)
        return self._requeue(record, held, lease, reason)

    def _adopt(self, record: JobRecord, held: Epoch, lease: Lease, reason: str) -> str:
        """Watch the pods of the job from here; nothing if this machine does not reach them."""
        if find_cluster(self._settings).id != lease.job.cluster:
            return ""
        with self._lock(record) as lock:
            self._ledger.claim(record.id, self._host, departed=held.number)
            queue = open_machine_queue(self._ledger, self._settings)
            with queue.take_turn():
                queue.admit(lease.job, waits=False)
                queue.end_lease(lease)
            hand_over_job(self._ledger, record, lock)
        return f"taken up, because {reason}"

    def _requeue(self, record: JobRecord, held: Epoch, lease: Lease, reason: str) -> str:
        """End the attempt, and return the job to the queue, or end it without a retry."""
        site = open_job_context(self._ledger, record, settings=self._settings)
        waits = f"a machine, because {reason}"
        with self._lock(record) as lock:
            site.epoch = self._ledger.claim(record.id, self._host, departed=held.number)
            self._archive_published(site)
            finalize_unfinished_attempts(site, reason=reason)
            self._leases.release(lease)
            continues = _continues(site)
            if continues:
                message = f"waits for {waits}"
                enter_queue(
                    self._ledger, record, message, epoch=site.epoch, settings=self._settings
                )
            else:
                lock.release()  # finalize_abandoned_job takes it, and removes its file
        if continues:
            show_queued_job(self._ledger, record, waits)
            return f"put back into the queue, because {reason}"
        finalize_abandoned_job(site, JobState.FAILED, reason)
        report_end(self._ledger, record.id)
        return f"ended, because {reason}"

    @contextmanager
    def _lock(self, record: JobRecord) -> Generator[JobLock]:
        """Own the job. After an error, the lock's file stays, by which recover_jobs goes on."""
        lock = JobLock(self._settings.state_dir.absolute(), timeout=0.0)
        lock.acquire(record.id, store=self._store.url)
        try:
            with lock.keep_on_error():
                yield lock
        finally:
            lock.release_and_remove()

    def _archive_published(self, site: JobContext) -> None:
        """Archive what the machine had published of the logs and metrics."""
        record = site.record
        for begun in self._ledger.list_attempts(record.id):
            archiver = LogArchiver(
                self._store,
                project_id=record.project_id,
                job_id=record.id,
                attempt=begun.attempt,
                scratch=self._settings.state_dir,
            )
            logs = list_published_logs(self._store, record, begun.attempt)
            metrics = [PublishedMetrics(log.gang, log.attempt, log.rank) for log in logs]
            archive_metrics(self._store, record.project_id, record.id, begun.attempt, metrics)
            archiver.archive(logs)


def _continues(site: JobContext) -> bool:
    """Return whether the job is to run again."""
    if site.ledger.controls.find_stop_request(site.job_id):
        return False
    has_run = bool(site.ledger.list_outcomes(site.job_id))
    return not has_run or was_preempted(site) or decide_job_retry(site).retry
