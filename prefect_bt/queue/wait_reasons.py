"""Say what a job waits for, as a phrase, and which jobs hold it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from math import inf
from typing import Final, NamedTuple

from prefect_bt.queue.free_resources import Room, lease_end
from prefect_bt.queue.records import Lease, QueuedJob
from prefect_bt.substrates.protocol import CPUS, MEMORY

BEHIND: Final = "the jobs ahead of it"
_NAMED_HOLDERS: Final = 2
"""Jobs that a phrase names; the others are counted."""
MOST_HOLDERS: Final = 20
"""Jobs in a list of those that hold what is short: a thousand jobs may wait for the same."""
_DAY: Final = 86400.0


class Shortage(NamedTuple):
    """What is short for a job, and the leases that hold the most of it, the largest first."""

    reason: str
    held_by: tuple[Lease, ...] = ()


def find_shortage(job: QueuedJob, rooms: Sequence[Room], now: float) -> Shortage:
    """Return the resource that is short on the machine that lacks the fewest."""
    short = {
        room.host: [name for name, n in room.need(job.demand).items() if room.free.get(name, 0) < n]
        for room in rooms
    }
    gpu_type = job.demand.gpu_type
    room = min(rooms, key=lambda room: (len(short[room.host]), -room.free.get(gpu_type, 0)))
    if not short[room.host]:
        return Shortage(_find_pod_shortage(job, room) or BEHIND)
    name = short[room.host][0]
    asked = _format_asked(room.need(job.demand)[name], name)
    free, total = max(0, room.free.get(name, 0)), room.total[name]
    amounts = f"{_format_number(free, name)} of {_format_number(total, name)}"
    held_by = _find_holders(room, name)
    holders = _format_holders(held_by, room, name, now, team=job.team)
    return Shortage(f"{asked}: {room.name} has {amounts} free{holders}", held_by[:MOST_HOLDERS])


def find_lack(job: QueuedJob, rooms: Sequence[Room], *, is_host_there: bool) -> str:
    """Return why no machine can run the job. `is_host_there`: whether its only machine is there."""
    if job.cluster and is_host_there:
        return _find_lack_of_cluster(job, rooms)
    allowed = [room for room in rooms if job.host in {"", room.host}]
    if not allowed:
        return "its machine is away" if job.host else "a machine: none is there"
    allowed = [room for room in allowed if room.allows(job)]
    if not allowed:
        return f"a machine with the substrate {job.substrate}"
    for name, amount in (
        (job.demand.gpu_type, job.demand.gpus),
        (CPUS, 1000 * job.node_cpus),
        (MEMORY, job.node_memory),
    ):
        largest = max(allowed, key=lambda room: room.total.get(name, 0))
        most = largest.total.get(name, 0)
        if amount > most:
            return _format_lack(job, name, amount, most)
    return f"a machine that has all of it: {format_node(job)}"


def format_node(job: QueuedJob) -> str:
    """Return what a machine must have at least: `8 H100, 64 CPUs and 512 GiB`."""
    gpus = f"{job.demand.gpus} {format_type(job)}, " if job.demand.gpus else ""
    cpus, memory = format_amount(1000 * job.node_cpus, CPUS), format_amount(job.node_memory, MEMORY)
    return f"{gpus}{cpus} and {memory}"


def format_type(job: QueuedJob) -> str:
    return job.demand.gpu_type or "GPUs"


def format_amount(amount: int, name: str) -> str:
    """Return an amount with its unit: `8 H100`, `1.5 CPUs`, `20 GiB`."""
    number = _format_number(amount, name)
    if name == MEMORY:
        return number
    if name == CPUS:
        return f"{number} CPU{'s' if amount != 1000 else ''}"
    return f"{number} {name or 'GPUs'}"


def _format_asked(amount: int, name: str) -> str:
    return format_amount(amount, name) + (" of memory" if name == MEMORY else "")


def _format_number(amount: int, name: str) -> str:
    if name == MEMORY:
        from prefect_bt.planning.resource_amounts import format_memory  # slow to import

        return format_memory(amount)
    return f"{amount / 1000:g}" if name == CPUS else str(amount)


def _format_lack(job: QueuedJob, name: str, amount: int, most: int) -> str:
    asked, each = _format_asked(amount, name), " on each node" if name in {CPUS, MEMORY} else ""
    number = _format_number(most, name)
    if job.host:
        return f"{asked}{each}: its machine has {number}"
    if not most:
        return f"no machine has {name or 'GPUs'}"
    return f"no machine has {asked}; the largest has {number}"


def _find_lack_of_cluster(job: QueuedJob, rooms: Sequence[Room]) -> str:
    pods = [room.pods for room in rooms if room.pods and room.host == job.cluster]
    if not pods:
        return "its cluster: no machine of the queue reaches it"
    most = pods[0].count(job, empty=True)
    return f"{_format_pods(job)}: the whole cluster has room for {most}"


def _find_pod_shortage(job: QueuedJob, room: Room) -> str:
    if room.pods is None or room.has_room_for_pods(job):
        return ""
    return f"{_format_pods(job)}: there is room for {room.pods.count(job)} now"


def _format_pods(job: QueuedJob) -> str:
    """Return `2 nodes with 8 H100, 32.1 CPUs and 200 GiB each`."""
    pod = job.pod
    gpus = f"{pod[job.demand.gpu_type]} {format_type(job)}, " if job.demand.gpus else ""
    cpus, memory = (format_amount(pod.get(name, 0), name) for name in (CPUS, MEMORY))
    what = f"{gpus}{cpus} and {memory}"
    return f"a node with {what}" if job.nodes == 1 else f"{job.nodes} nodes with {what} each"


def _find_holders(room: Room, name: str) -> tuple[Lease, ...]:
    held = [(room.need(lease.job.demand).get(name, 0), lease) for lease in room.leases]
    ordered = sorted(held, key=lambda item: (-item[0], item[1].number))
    return tuple(lease for amount, lease in ordered if amount)


def _format_holders(
    leases: Sequence[Lease], room: Room, name: str, now: float, *, team: str
) -> str:
    """Return `; job abc1234 of alice holds 8, until about 14:05 UTC`.

    The job that waits is of `team`. The log of that job has the text, so it names no other team's
    jobs.
    """
    if not leases:
        return ""
    phrases = [_format_holder(lease, room, name, now, team) for lease in leases[:_NAMED_HOLDERS]]
    if rest := leases[_NAMED_HOLDERS:]:
        held = _format_number(_sum_held(rest, room, name), name)
        phrases.append(f"{len(rest)} more job{'s hold' if len(rest) > 1 else ' holds'} {held}")
    return f"; {', '.join(phrases)}"


def _sum_held(leases: Iterable[Lease], room: Room, name: str) -> int:
    return sum(room.need(lease.job.demand)[name] for lease in leases)


def _format_holder(lease: Lease, room: Room, name: str, now: float, team: str) -> str:
    user = f" of {lease.job.user}" if lease.job.user else ""
    holder = f"job {lease.job.id}{user}" if lease.job.team == team else "a job of another team"
    amount, end = room.need(lease.job.demand)[name], lease_end(lease, now)
    until = f", until about {_format_time(end, now)}" if end < inf else ""
    return f"{holder} holds {_format_number(amount, name)}{until}"


def _format_time(at: float, now: float) -> str:
    shape = "%H:%M UTC" if at - now < _DAY else "%Y-%m-%d %H:%M UTC"
    return datetime.fromtimestamp(at, UTC).strftime(shape)
