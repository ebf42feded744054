"""What the machines of a store offer to jobs, and the limits of GPU types.

queue/machines/<state folder's id>.json      replaced every few seconds by its machine
queue/limits/<quoted GPU type>.json          limit of all jobs
queue/limits/<quoted GPU type>/team-<quoted team>.json
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from prefect_bt import codec
from prefect_bt.errors import ObjectNotFound
from prefect_bt.host.cgroup import count_cpus, measure_memory
from prefect_bt.host.gpu_reservation import list_gpus
from prefect_bt.host.job_lock import find_host_id
from prefect_bt.ledger.job_objects import DAMAGED
from prefect_bt.object_keys import QUEUE_LIMITS, QUEUE_MACHINES, quote_name
from prefect_bt.object_store.protocols import Store
from prefect_bt.queue.records import Limit, Machine

T = TypeVar("T")
REPORT_INTERVAL: Final = 5.0
"""Seconds between two reports of a machine that takes jobs."""
ABSENCE_SECONDS: Final = 30.0
"""Seconds without a report after which no job is planned for a machine. Its leases remain."""


def measure_machine(
    state_dir: Path, *, cpus: int | None, memory: int | None, substrates: tuple[str, ...]
) -> Machine:
    """Return what this machine offers; `cpus` and `memory` (bytes) replace what it has.

    Nothing is written: a state folder that is not there yet has no ID.
    """
    name, _, host = find_host_id(state_dir).partition(":")
    gpus = dict(Counter(gpu.type for gpu in list_gpus()))
    cpus, memory = cpus or count_cpus(), memory or measure_memory()
    return Machine(host, name, cpus, memory, gpus, time.time(), substrates)


def report_machine(store: Store, machine: Machine) -> None:
    """Write what this machine offers."""
    store.put(f"{QUEUE_MACHINES}/{machine.host}.json", codec.dumps(machine).encode())


def list_machines(store: Store) -> list[Machine]:
    """Return the machines that ever took jobs of the store."""
    reports = [(info, _read(store, info.key, Machine)) for info in store.list(QUEUE_MACHINES)]
    return [
        # Its own clock may be wrong.
        replace(machine, seen_at=info.modified if machine.seen_at else 0.0)
        for info, machine in reports
        if machine is not None
    ]


def is_present(machine: Machine, now: float) -> bool:
    """Return whether the machine reported lately. `now`: by the store's clock."""
    return now - machine.seen_at < ABSENCE_SECONDS


def choose_gpu_type(wanted: str, count: int, own: Machine, others: Iterable[Machine]) -> str:
    """Return the type of the GPUs that a job gets: the one that it names, if any machine has it.

    Else it is the most frequent type of this machine, or of all if this machine has too few.
    """
    others = list(others)
    if any(wanted in one.gpus for one in [own, *others]):
        return wanted
    enough = max(own.gpus.values(), default=0) >= count
    offered = Counter[str]()
    for machine in [own] if enough else [own, *others]:
        offered |= Counter(machine.gpus)
    return max(offered, key=lambda kind: offered[kind], default=wanted)


def write_limit(store: Store, limit: Limit) -> None:
    """Replace the limit of a GPU type, of all jobs or of a team."""
    team = "" if limit.team is None else f"/team-{quote_name(limit.team) if limit.team else ''}"
    key = f"{QUEUE_LIMITS}/{quote_name(limit.gpu_type)}{team}.json"
    store.put(key, codec.dumps(limit).encode())


def list_limits(store: Store) -> list[Limit]:
    """Return the limits, sorted by GPU type, those of all jobs before those of teams."""
    read = [_read(store, info.key, Limit) for info in store.list(QUEUE_LIMITS)]
    found = [limit for limit in read if limit is not None]
    return sorted(
        found, key=lambda limit: (limit.gpu_type, limit.team is not None, limit.team or "")
    )


def _read(store: Store, key: str, kind: type[T]) -> T | None:
    with suppress(ObjectNotFound, *DAMAGED):
        return codec.loads(kind, store.get(key))
    return None
