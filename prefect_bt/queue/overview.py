"""The queue, the limits and the machines of a store as JSON documents, and changes by users."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from prefect_bt.definitions import AvailabilityModel
from prefect_bt.definitions.base import MAX_INTEGER
from prefect_bt.errors import StateError, StoreError, UsageError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.projects import DEFAULT_TEAM
from prefect_bt.ledger.states import JobState
from prefect_bt.object_store.clock import StoreClock
from prefect_bt.object_store.protocols import Store
from prefect_bt.queue.leases import Leases
from prefect_bt.queue.machines import is_present, list_limits, list_machines, write_limit
from prefect_bt.queue.pod_placement import PodPlacement
from prefect_bt.queue.records import Lease, Limit, Machine, to_cpus
from prefect_bt.queue.schedule import Schedule, Wait, make_schedule
from prefect_bt.queue.waiting_jobs import (
    change_waiting_job,
    list_waiting_jobs,
    select_unclaimed,
)
from prefect_bt.substrates.protocol import CPUS, MEMORY
from prefect_bt.text.quantities import format_iso

Document = dict[str, Any]
NO_WORKER: Final = "which starts it when one of its jobs ends: no `prefect-bt worker` runs there"
ABOUT_TO_START: Final = "nothing: it is about to start"


def read_schedule(ledger: Ledger) -> Schedule:
    """Decide about the jobs that wait. A job in `starts` is about to start: no machine has it."""
    store, now = ledger.store, _read_clock(ledger.store)
    waiting = list_waiting_jobs(store)  # before the leases: a job may start between the two
    leases = Leases(store).read()
    waiting = select_unclaimed(ledger, waiting, leases, now)
    machines = [one for one in list_machines(store) if is_in_use(one, leases, now)]
    schedule = make_schedule(machines, leases, waiting, list_limits(store), now=now)
    silent = {one.host for one in machines if not (one.is_cluster or is_present(one, now))}
    return _delay_starts(schedule, silent)


def _delay_starts(schedule: Schedule, silent: Container[str]) -> Schedule:
    """Return the schedule with jobs that wait for machines on which no process takes jobs."""
    delayed = [start for start in schedule.starts if start.host in silent]
    if not delayed:
        return schedule
    waits = [Wait(one.job, 0, f"{one.machine}, {NO_WORKER}") for one in delayed]
    starts = tuple(start for start in schedule.starts if start.host not in silent)
    return Schedule(starts, (*waits, *schedule.waits))


def _read_clock(store: Store) -> float:
    """Return the store's time; this machine's for a user who may only read the store."""
    try:
        return StoreClock(store).now()
    except StoreError:
        return time.time()


def list_machines_by_use(store: Store) -> tuple[list[Machine], list[Machine]]:
    """Return the machines and clusters that take jobs or have some, and those that are away."""
    machines = list_machines(store)
    if not machines:
        return [], []
    leases, now = Leases(store).read(), _read_clock(store)
    used = [one for one in machines if is_in_use(one, leases, now)]
    return used, [one for one in machines if one not in used]


def is_in_use(machine: Machine, leases: Iterable[Lease], now: float) -> bool:
    """Return whether the machine takes jobs by itself, or starts the next job when one ends."""
    return is_present(machine, now) or any(lease.place == machine.host for lease in leases)


def queue_documents(schedule: Schedule) -> list[Document]:
    """Return the waiting jobs in the order of the queue, those that are about to start first."""
    starts = [Wait(one.job, 0, ABOUT_TO_START) for one in schedule.starts]
    machines = {one.job.id: one.machine for one in schedule.starts}
    return [
        {
            "id": job.id,
            "place": place,
            "priority": job.priority,
            "waiting_for": wait.reason,
            "since": format_iso(job.since or job.submitted_at),
            "starts_at": None if wait.starts_at is None else format_iso(wait.starts_at),
            "team": job.team or None,
            "gpus": job.demand.gpus,
            "gpu_type": job.demand.gpu_type or None,
            "cpus": job.demand.cpus,
            "memory": job.demand.memory,
            "spot": job.spot,
            "submitted_at": format_iso(job.submitted_at),
            "held_by": [_holder_document(lease) for lease in wait.held_by],
            "machine": machines.get(job.id),
        }
        for place, wait in enumerate([*starts, *schedule.waits], start=1)
        for job in [wait.job]
    ]


def find_wait(ledger: Ledger, job_id: str) -> Document:
    """Return what a job of the queue waits for, or the machine that is about to start it.

    Empty for a job that is not in the queue.
    """
    keys = ("place", "waiting_for", "held_by", "machine", "starts_at")
    rows = [row for row in queue_documents(read_schedule(ledger)) if row["id"] == job_id]
    return {key: rows[0][key] for key in keys} if rows else {}


def _holder_document(lease: Lease) -> Document:
    """Return a job that holds what another one waits for; `ends_at`: at the latest."""
    demand = lease.job.demand
    return {
        "id": lease.job.id,
        "user": lease.job.user or None,
        "gpus": demand.gpus,
        "gpu_type": demand.gpu_type or None,
        "cpus": demand.cpus,
        "memory": demand.memory,
        "ends_at": None if lease.ends_at is None else format_iso(lease.ends_at),
    }


def update_waiting_job(
    ledger: Ledger,
    job_id: str,
    *,
    priority: int | None = None,
    availability_model: AvailabilityModel | None = None,
) -> Document:
    """Change what is given of a waiting job; `place` is None if the job starts meanwhile."""
    if priority is None and availability_model is None:
        raise UsageError(
            "There is nothing to change.", next_step="Give a priority or an availability model."
        )
    if abs(priority or 0) > MAX_INTEGER:
        raise UsageError(f"The priority is not between -{MAX_INTEGER} and {MAX_INTEGER}.")
    if (state := ledger.get_state(job_id)) is not JobState.PENDING:
        raise StateError(
            f"Job {job_id} does not wait ({state.value}), so the change would have no effect.",
            state=state.value,
            next_step=f"See: prefect-bt view --job-id {job_id}",
        )
    changes: Document = {}
    # The records are also for an entry that is yet to come.
    if priority is not None:
        ledger.controls.set_priority(job_id, priority)
        changes["priority"] = priority
    if availability_model is not None:
        ledger.controls.set_availability(job_id, availability_model.value)
        changes["spot"] = availability_model is AvailabilityModel.SPOT
    changed = change_waiting_job(ledger, job_id, **changes)
    rows = queue_documents(read_schedule(ledger))
    return {
        "id": job_id,
        "priority": changed.priority,
        "availability_model": "spot" if changed.spot else "dedicated",
        "place": next((row["place"] for row in rows if row["id"] == job_id), None),
    }


def capacity_document(store: Store) -> Document:
    """Return GPU types with limits and use, of all jobs and by team, and what machines have."""
    leases, machines, limits = Leases(store).read(), list_machines(store), list_limits(store)
    now = _read_clock(store)
    used = [one for one in machines if is_in_use(one, leases, now)]
    held = [lease for lease in leases if lease.job.demand.gpus]
    owned = _count_gpus(used)
    types = {*owned, *(one.job.demand.gpu_type for one in held), *(one.gpu_type for one in limits)}
    teams = {(one.job.team, one.job.demand.gpu_type) for one in held}
    teams |= {(one.team, one.gpu_type) for one in limits if one.team is not None}
    return {
        "gpu_capacities": [
            _gpu_document(kind, owned[kind], limits, held) for kind in sorted(types)
        ],
        "team_gpu_capacities": [_team_document(*one, limits, held) for one in sorted(teams)],
        "machines": [_machine_document(one, leases, present=one in used) for one in machines],
    }


def find_team_row(document: Document, team: str, gpu_type: str) -> Document:
    """Return the row of a team's limit in the capacity document; `team`: "" for the default."""
    wanted = (team or DEFAULT_TEAM, gpu_type)
    rows: list[Document] = document["team_gpu_capacities"]
    return next(row for row in rows if (row["team_name"], row["gpu_type"]) == wanted)


def change_limit(store: Store, gpu_type: str, team: str | None, **changes: Any) -> Limit:
    """Change fields of a limit, of all jobs if `team` is None, and return the limit. UsageError."""
    _check_type(store, gpu_type)
    present = find_limit(list_limits(store), gpu_type, team) or Limit(gpu_type, team)
    changed = replace(present, modified_at=time.time(), **changes)
    if changed.maximum is not None and changed.baseline > changed.maximum:
        raise UsageError(
            f"The baseline {changed.baseline} is above the limit {changed.maximum} of the team.",
            next_step="Lower the baseline, or raise the limit.",
        )
    write_limit(store, changed)
    return changed


def _check_type(store: Store, gpu_type: str) -> None:
    """Raise UsageError unless a definition or a present machine has GPUs of this type."""
    from prefect_bt.definitions import Accelerator

    machines = capacity_document(store)["machines"]
    offered = {gpu["gpu_type"] for one in machines if one["present"] for gpu in one["gpus"]}
    known = dict.fromkeys([*Accelerator, *sorted(offered)])
    if gpu_type not in known:
        raise UsageError(
            f"No GPU type is called {gpu_type!r}.", next_step=f"Known: {', '.join(known)}."
        )


def find_limit(limits: Iterable[Limit], gpu_type: str, team: str | None) -> Limit | None:
    return next((one for one in limits if (one.gpu_type, one.team) == (gpu_type, team)), None)


def _count_gpus(machines: Iterable[Machine]) -> Counter[str]:
    total = Counter[str]()
    for machine in machines:
        total.update(machine.gpus)
    return total


def _gpu_document(
    gpu_type: str, owned: int, limits: Sequence[Limit], held: Sequence[Lease]
) -> Document:
    """Return the capacity for all jobs. The baseline is the sum of the teams'."""
    limit = find_limit(limits, gpu_type, None)
    return {
        "gpu_type": gpu_type,
        "baseline": sum(one.baseline for one in limits if one.gpu_type == gpu_type),
        "limit": owned if limit is None or limit.maximum is None else limit.maximum,
        **_usage(one for one in held if one.job.demand.gpu_type == gpu_type),
    }


def _team_document(
    team: str, gpu_type: str, limits: Sequence[Limit], held: Sequence[Lease]
) -> Document:
    limit = find_limit(limits, gpu_type, team) or Limit(gpu_type, team)
    return {
        "team_id": team or DEFAULT_TEAM,
        "team_name": team or DEFAULT_TEAM,
        "gpu_type": gpu_type,
        "baseline": limit.baseline,
        "limit": limit.maximum,
        **_usage(o for o in held if (o.job.team, o.job.demand.gpu_type) == (team, gpu_type)),
    }


def _usage(leases: Iterable[Lease]) -> Document:
    used = Counter[bool]()
    for lease in leases:
        used[lease.job.spot] += lease.job.demand.gpus
    return {
        "usage_count": used.total(),
        "dedicated_usage_count": used[False],
        "spot_usage_count": used[True],
    }


def _machine_document(machine: Machine, leases: Sequence[Lease], *, present: bool) -> Document:
    placed = [lease for lease in leases if lease.place == machine.host]
    used = PodPlacement(machine.pod_hosts, placed).foreign
    for lease in placed:
        used.update(lease.job.demand.amounts)
    return {
        "name": machine.name,
        "host": machine.host,
        "present": present,
        "cpus": machine.cpus,
        "cpus_used": to_cpus(used[CPUS]),
        "memory": machine.memory,
        "memory_used": used[MEMORY],
        "gpus": [
            {"gpu_type": kind, "count": count, "used": used[kind]}
            for kind, count in machine.gpus.items()
        ],
        "jobs": [lease.job.id for lease in placed],
    }
