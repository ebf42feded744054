"""Start jobs when a machine has room for them, and put them into the queue until then.

A queued job has no process. Each process that ends a job on this machine starts the jobs that fit
now; so do `prefect-bt up`, `prefect-bt worker` and the flow `reconcile`.

The order of writes is that of docs/decisions/024: the lock of the job, a lease, an epoch, the event
that ends the wait, the end of the entry, and the start of the supervisor.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any, Final

from prefect_bt.credentials.secrets import EnvironmentSecrets, secret_variable
from prefect_bt.definitions import AvailabilityModel, parse_memory
from prefect_bt.errors import PrefectBtError, ServerError, StateError
from prefect_bt.host.job_lock import JobLock, has_lock_file, host_id
from prefect_bt.jobs.starting.cluster_reader import (
    build_cluster_demand,
    find_cluster,
    find_job_cluster,
)
from prefect_bt.jobs.starting.launcher import hand_over_job
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import load_current_definition, load_definition
from prefect_bt.ledger.records import JobRecord, Resources
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import QUEUE_WAITING
from prefect_bt.planning.planner import list_job_secret_names
from prefect_bt.queue.machine_queue import MachineQueue
from prefect_bt.queue.machines import measure_machine
from prefect_bt.queue.records import KUBERNETES, Demand, Machine, QueuedJob
from prefect_bt.queue.schedule import Schedule
from prefect_bt.queue.waiting_jobs import START_SECONDS, remove_waiting_job
from prefect_bt.settings import Settings, process_environment

_DOCKER_SOCKET: Final = "/var/run/docker.sock"
_ENGINE_TIMEOUT: Final = 1.0


def open_machine_queue(ledger: Ledger, settings: Settings | None = None) -> MachineQueue:
    """Return the queue of the ledger's store for this machine.

    `settings`: those of a job whose block names its state folder; None: the process's.
    """
    settings = settings or Settings()
    queue = MachineQueue(ledger, settings.state_dir.absolute(), **_find_offer(settings))
    queue.read_cluster = lambda cluster_id: find_cluster(settings).find_machine(cluster_id)
    return queue


def measure_this_machine(settings: Settings) -> Machine:
    """Return what this machine offers to jobs; write nothing."""
    return measure_machine(settings.state_dir.absolute(), **_find_offer(settings))


def _find_offer(settings: Settings) -> dict[str, Any]:
    """Return what the settings say about the machine, and the substrates that it has."""
    engine = settings.docker_host or process_environment().get("DOCKER_HOST") or _DOCKER_SOCKET
    return {
        "cpus": settings.capacity_cpus,
        "memory": settings.capacity_memory,
        "substrates": ("local", "docker") if _answers(engine) else ("local",),
    }


def _answers(engine: str) -> bool:
    """Return whether a process listens there: the socket of an Engine that is stopped remains."""
    if engine.startswith("tcp://"):
        return True
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ENGINE_TIMEOUT)
        connection.connect(engine.removeprefix("unix://"))
        return True
    return False


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
    """Return what the queue knows of a job that asks whether it may start."""
    project, settings = load_current_definition(ledger, record), settings or Settings()
    compute = project.job.compute
    nodes, each = compute.node_count, record.resources or Resources()
    demand = Demand(each.gpus * nodes, each.gpu_type, each.cpus * nodes, each.memory * nodes)
    cluster_id = ""
    if record.substrate == KUBERNETES:
        cluster_id = find_job_cluster(ledger, settings, record.cluster)
        demand = build_cluster_demand(ledger, settings, cluster_id, each, nodes)
    elif each.gpus:
        queue = open_machine_queue(ledger, settings)
        demand = queue.match_gpus(demand, only_here=bool(record.host))
    number, last = ledger.find_last_event(record.id)
    return QueuedJob(
        id=record.id,
        demand=demand,
        submitted_at=record.created_at,
        since=last.at if last else record.created_at,
        priority=project.job.priority or 0,
        team=project.team_name or "",
        spot=project.job.compute.availability_model is AvailabilityModel.SPOT,
        run_time=record.max_run_time,
        host=record.host.partition(":")[2],
        substrate=record.substrate,
        project_id=record.project_id,
        cluster=cluster_id,
        nodes=nodes,
        event=number,
        # A node of a cluster is measured by its pod.
        node_cpus=0 if cluster_id else compute.cpu_count,
        node_memory=0 if cluster_id else parse_memory(compute.memory),
        user=record.user,
    )


def admit_job(
    ledger: Ledger,
    job: QueuedJob,
    *,
    waits: bool = True,
    is_new: bool = True,
    settings: Settings | None = None,
) -> str:
    """Begin a lease of a job that this process owns and return "", or return what it waits for.

    `waits`: False for a job that starts whether there is room or not. `is_new`: whether the job is
    not in the queue yet; it starts without a lease if its cluster cannot be read.
    """
    queue = open_machine_queue(ledger, settings)
    with queue.take_turn():
        if queue.find_lease(job.id):
            return ""
        if job.substrate == KUBERNETES:
            cluster = queue.read_cluster(job.cluster)
            if cluster is None:
                reaches = job.cluster == find_cluster(settings or Settings()).id
                return "" if is_new and reaches else find_reason(Schedule(), job.id)
            waits = waits and not cluster.has_pods_of(job.id)  # recovered
        decided = queue.admit(job, waits=waits)
    if isinstance(decided, Schedule):
        return find_reason(decided, job.id)
    if job.spot:  # of an earlier lease
        ledger.controls.delete_preemption(job.id)
    return ""


def find_reason(schedule: Schedule, job_id: str) -> str:
    """Return what the job waits for, as a phrase."""
    reasons = [wait.reason for wait in schedule.waits if wait.job.id == job_id]
    return reasons[0] if reasons else "another machine, which has room for it"


def admit_new_job(ledger: Ledger, record: JobRecord) -> str:
    """Begin a lease of a job that this process owns and return "", or return what it waits for.

    A server starts whether there is room or not.
    """
    if not is_queued_here(record):
        return ""
    find_cluster(Settings()).retry()  # rights may have been granted since
    return admit_job(ledger, build_queued_job(ledger, record), waits=record.serving is None)


def start_waiting_jobs(ledger: Ledger, *, queue: MachineQueue | None = None) -> list[str]:
    """Start the waiting jobs for which this machine has room; return their IDs."""
    queue = queue or open_machine_queue(ledger)
    with queue.take_turn():
        return _start_chosen(ledger, queue)


def start_next_jobs(ledger: Ledger, *, ended: str = "", settings: Settings | None = None) -> None:
    """Start the jobs that fit at the end of a job; an error is left to the next process.

    A machine without any lease does not run jobs of this store, and starts none. `ended`: ID of a
    job that is over, and that this process still owns: so no newer lease of the job is taken for
    the ended one.
    """
    with suppress(PrefectBtError, OSError):
        find_cluster(settings or Settings()).forget()  # the job's pods are gone
        queue = open_machine_queue(ledger, settings)
        with queue.take_turn(ended=ended) as runs_jobs:
            if runs_jobs:
                _start_chosen(ledger, queue)


def start_if_room_came(ledger: Ledger, record: JobRecord, settings: Settings | None = None) -> None:
    """Start a job that was queued just now, if room came before its entry was written.

    An error is left to the next process: the job is in the queue.
    """
    with suppress(PrefectBtError, OSError):
        if is_queued_here(record, settings) and ledger.get_state(record.id) is JobState.PENDING:
            start_waiting_jobs(ledger, queue=open_machine_queue(ledger, settings))


def _start_chosen(ledger: Ledger, queue: MachineQueue) -> list[str]:
    started, tried = list[str](), set[str]()
    while jobs := queue.choose(tried):
        for job in jobs:
            has_started = _start(ledger, queue, job)
            if has_started is None:
                break
            tried.add(job.id)
            if has_started:
                started.append(job.id)
    return started


def _start(ledger: Ledger, queue: MachineQueue, job: QueuedJob) -> bool | None:
    """Hand the job to a supervisor; return False if it is no longer this machine's to start.

    None: another decision was made meanwhile, so that this one must be made again. An error of the
    job alone becomes a problem of the queue.
    """
    existed, lock = has_lock_file(queue.state_dir, job.id), JobLock(queue.state_dir, timeout=0.0)
    try:
        lock.acquire(job.id, store=ledger.store.url)  # by which recover_jobs finds the job
        has_started = _start_owned(ledger, queue, job, lock)
        if not has_started and not existed:
            lock.release_and_remove()
    except StateError:  # another process of this machine has it
        return False
    except (ServerError, OSError) as error:  # recover_jobs goes on with a job that has begun
        queue.add_problem(job, f"could not be started ({error})")
        return False
    else:
        return has_started
    finally:
        lock.release()


def _start_owned(ledger: Ledger, queue: MachineQueue, job: QueuedJob, lock: JobLock) -> bool | None:
    lease = queue.begin_lease(job)
    if lease is None:
        return None
    with suppress(StateError):  # another machine has it
        if queue.check_waiting(job):
            _begin(ledger, queue, job)
            remove_waiting_job(ledger.store, job.id, through=job.event)
            hand_over_job(ledger, ledger.get_job(job.id), lock)
            return True
    queue.end_lease(lease)
    return False


def _begin(ledger: Ledger, queue: MachineQueue, job: QueuedJob) -> None:
    """Claim the job and record its start. StateError if another process has it, or has ended it.

    A starter that claimed the job and did not go on in time is followed. If it does go on, it is
    refused at its next act, so that the job is this process's in every case.
    """
    host, epochs, follows = host_id(queue.state_dir), ledger.get_epochs(job.id), False
    try:
        epoch = ledger.claim(job.id, host)
    except StateError:
        if queue.clock.now() - epochs.find_last_change() <= START_SECONDS:
            raise
        follows, epoch = True, ledger.claim(job.id, host, unstarted=True)
    ledger.controls.delete_preemption(job.id)  # of an earlier lease
    message = f"starts on {queue.machine.name}, which has room for it"
    try:
        ledger.append_event(job.id, JobState.CREATED, message=message, epoch=epoch, after=job.event)
    except StateError:
        state = ledger.get_state(job.id)
        if not follows or state.terminal or state is JobState.PENDING:
            epochs.release_unused(epoch)
            raise


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
