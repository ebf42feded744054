"""Start jobs when a machine has room for them, and put them into the queue until then.

A queued job has no process. Each process that ends a job on this machine starts the jobs that fit
now; so do `prefect-bt up`, `prefect-bt worker` and the flow `reconcile`.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from prefect_bt.capacity.machine_queue import MachineQueue
from prefect_bt.capacity.records import KUBERNETES, Demand, Lease, QueuedJob
from prefect_bt.capacity.schedule import Schedule
from prefect_bt.capacity.waiting_jobs import add_waiting_job, remove_waiting_job
from prefect_bt.credentials.secrets import EnvironmentSecrets, secret_variable
from prefect_bt.definitions import AvailabilityModel
from prefect_bt.errors import NotFoundError, PrefectBtError, StateError
from prefect_bt.host.job_lock import JobLock, has_lock_file, host_id
from prefect_bt.jobs.queue.cluster_reader import find_cluster
from prefect_bt.jobs.queue.queued_runs import show_job_again
from prefect_bt.jobs.start import hand_over_job
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import load_definition
from prefect_bt.ledger.records import JobRecord, Resources
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import QUEUE_WAITING
from prefect_bt.planning.planner import list_job_secret_names
from prefect_bt.settings import Settings, process_environment

_DOCKER_SOCKET: Final = "/var/run/docker.sock"
UNWRITTEN_SECONDS: Final = 60.0
"""Seconds after which a queue entry without a job's record was left by a process that died."""


def open_machine_queue(ledger: Ledger, settings: Settings | None = None) -> MachineQueue:
    """Return the queue of the ledger's store for this machine.

    `settings`: those of a job whose block names its state folder; None: the process's.
    """
    settings = settings or Settings()
    engine = settings.docker_host or process_environment().get("DOCKER_HOST") or _DOCKER_SOCKET
    has_docker = Path(engine.removeprefix("unix://")).exists()
    queue = MachineQueue(
        ledger,
        settings.state_dir.absolute(),
        cpus=settings.capacity_cpus,
        memory=settings.capacity_memory,
        substrates=("local", "docker") if has_docker else ("local",),
    )
    queue.read_cluster = lambda cluster_id: find_cluster(settings).find_machine(cluster_id)
    return queue


def is_queued_here(record: JobRecord, settings: Settings | None = None) -> bool:
    """Return whether the job waits in this queue; Kueue has one of its own."""
    settings = settings or Settings()
    return record.substrate != KUBERNETES or not settings.kubernetes.queue_name


def has_waiting_jobs(ledger: Ledger) -> bool:
    """Return whether any job waits."""
    return next(iter(ledger.store.list(QUEUE_WAITING)), None) is not None


def build_queued_job(
    ledger: Ledger, record: JobRecord, settings: Settings | None = None
) -> QueuedJob:
    """Return what the queue knows of a job."""
    project, now, settings = load_definition(record), ledger.now(), settings or Settings()
    nodes, each = project.job.compute.node_count, record.resources or Resources()
    demand = Demand(each.gpus * nodes, each.gpu_type, each.cpus * nodes, each.memory * nodes)
    cluster = find_cluster(settings) if record.substrate == KUBERNETES else None
    if cluster:
        demand = cluster.build_demand(each, nodes)
    elif each.gpus:
        demand = open_machine_queue(ledger, settings).match_gpus(demand)
    return QueuedJob(
        id=record.id,
        demand=demand,
        submitted_at=record.created_at,
        since=now,
        priority=ledger.controls.get_priority(record.id, default=project.job.priority or 0),
        team=project.team_name or "",
        spot=project.job.compute.availability_model is AvailabilityModel.SPOT,
        run_time=record.max_run_time,
        substrate=record.substrate,
        project_id=record.project_id,
        cluster=cluster.id if cluster else "",
        nodes=nodes,
    )


def admit_job(
    ledger: Ledger,
    job: QueuedJob,
    *,
    waits: bool = True,
    is_new: bool = True,
    settings: Settings | None = None,
) -> Schedule | None:
    """Begin a lease of a job that this process owns; None if it may start, else the schedule.

    `waits`: False for a job that starts whether there is room or not. `is_new`: whether the job is
    not in the queue yet; it starts without a lease if its cluster cannot be read.
    """
    queue = open_machine_queue(ledger, settings)
    with queue.lock():
        queue.release_ended()
        if queue.find_lease(job.id):
            return None
        if job.substrate == KUBERNETES:
            cluster = queue.read_cluster(job.cluster)
            if cluster is None:
                return None if is_new else Schedule()
            waits = waits and not cluster.has_pods_of(job.id)  # recovered
        decided = queue.admit(job, waits=waits)
    if isinstance(decided, Schedule):
        return decided
    if job.spot:  # of an earlier lease
        ledger.controls.delete_preemption(job.id)
    return None


def find_reason(schedule: Schedule, job_id: str) -> str:
    """Return what the job waits for, as a phrase."""
    reasons = [wait.reason for wait in schedule.waits if wait.job.id == job_id]
    return reasons[0] if reasons else "another machine, which has room for it"


def admit_new_job(ledger: Ledger, record: JobRecord, *, again: bool = False) -> str:
    """Return "" if a job of this process starts now; else write it to the queue: what it waits for.

    The job's record need not exist yet. A server starts whether there is room or not. `again`: the
    job has run before.
    """
    if not is_queued_here(record):
        return ""
    find_cluster(Settings()).retry()  # rights may have been granted since
    job = build_queued_job(ledger, record)
    schedule = admit_job(ledger, job, waits=record.serving is None)
    if schedule is None:
        return ""
    reason = find_reason(schedule, job.id)
    if again:  # before the entry: then a machine may start the job, and sets the state of the run
        show_job_again(ledger, job.id, reason)
    add_waiting_job(ledger.store, job)
    return reason


def return_to_queue(ledger: Ledger, job_id: str, *, epoch: int, message: str) -> None:
    """Record that a job of this process, whose entry is in the queue, waits again."""
    if ledger.get_state(job_id) is not JobState.PENDING:
        ledger.append_event(job_id, JobState.PENDING, message=message, epoch=epoch)
    ledger.get_epochs(job_id).release(epoch)


def start_waiting_jobs(ledger: Ledger, *, queue: MachineQueue | None = None) -> list[str]:
    """Start the waiting jobs for which this machine has room; return their IDs."""
    queue = queue or open_machine_queue(ledger)
    with queue.lock():
        queue.release_ended()
        return _start_admitted(ledger, queue)


def start_next_jobs(ledger: Ledger, *, ended: str = "", settings: Settings | None = None) -> None:
    """Start the jobs that fit at the end of a job; an error is left to the next process.

    A machine without any lease does not run jobs of this store, and starts none. `ended`: ID of a
    job that is over, and that this process still owns: so no newer lease of the job is taken for
    the ended one.
    """
    with suppress(PrefectBtError, OSError):
        find_cluster(settings or Settings()).forget()  # the job's pods are gone
        queue = open_machine_queue(ledger, settings)
        with queue.lock():
            if queue.release_ended(ended=ended):
                _start_admitted(ledger, queue)


def _start_admitted(ledger: Ledger, queue: MachineQueue) -> list[str]:
    return [lease.job.id for lease in queue.iter_admitted() if _start(ledger, queue, lease)]


def list_secret_notes(record: JobRecord) -> list[str]:
    """Return notes about secrets of a waiting job that only this process's environment has."""
    names = list_job_secret_names(load_definition(record).job)
    found = [secret_variable(name) for name in names if EnvironmentSecrets().find(name)]
    if not found:
        return []
    return [
        f"{', '.join(found)}: the process that starts the job later must have it in its "
        "environment. A Prefect Secret block works from everywhere."
    ]


def list_cluster_notes(record: JobRecord) -> list[str]:
    """Return why a job did not enter the queue although its cluster has no queue, as a note."""
    problem = find_cluster(Settings()).problem
    return [problem] if problem and record.substrate == KUBERNETES else []


def start_if_room_came(ledger: Ledger, record: JobRecord, settings: Settings | None = None) -> None:
    """Start a job that was queued just now, if room came before its record was written.

    An error is left to the next process: the job is in the queue.
    """
    with suppress(PrefectBtError, OSError):
        if is_queued_here(record, settings) and ledger.get_state(record.id) is JobState.PENDING:
            start_waiting_jobs(ledger, queue=open_machine_queue(ledger, settings))


def _start(ledger: Ledger, queue: MachineQueue, lease: Lease) -> bool:
    """Hand the job to a supervisor; return False if it is no longer this machine's to start."""
    job_id, state_dir = lease.job.id, queue.state_dir
    existed, claim = has_lock_file(state_dir, job_id), JobLock(state_dir, timeout=0.0)
    try:
        record = _find_waiting(ledger, lease.job)
        if record is None:
            queue.give_back(lease)
            return False
        claim.acquire(job_id)
        _begin(ledger, record, state_dir=state_dir, where=queue.machine.name)
        remove_waiting_job(ledger.store, job_id)
        hand_over_job(ledger, record, claim)
    except StateError:  # another process or machine has it
        queue.give_back(lease)
        claim.release() if existed else claim.release_and_remove()
        return False
    finally:
        claim.release()
    return True


def _find_waiting(ledger: Ledger, job: QueuedJob) -> JobRecord | None:
    """Return the record; None, and no entry of the queue, for a job that does not wait any more."""
    try:
        record = ledger.get_job(job.id)
        if ledger.get_state(job.id) is JobState.PENDING:
            return record
    except NotFoundError:
        if time.time() - job.since < UNWRITTEN_SECONDS:  # its push still writes it
            return None
    remove_waiting_job(ledger.store, job.id)
    return None


def _begin(ledger: Ledger, record: JobRecord, *, state_dir: Path, where: str) -> None:
    """Claim the job and record its start. StateError for a job that does not wait any more."""
    epoch = ledger.claim(record.id, host_id(state_dir))
    state = ledger.get_state(record.id)
    if state is not JobState.PENDING:
        ledger.get_epochs(record.id).release_unused(epoch)
        raise StateError(f"Job {record.id} is {state.value}.", state=state.value)
    ledger.controls.delete_preemption(record.id)  # of an earlier lease
    message = f"{where} has room for it"
    ledger.append_event(record.id, JobState.CREATED, message=message, epoch=epoch)
