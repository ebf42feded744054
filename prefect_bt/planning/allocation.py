"""What each node of a job gets: CPUs, memory and shared memory, and why. Pure.

`cpu_count` and `memory` of a definition are minimums. A node with GPUs gets at least the machine's
share for them; a node without gets what is asked, and may use what is free. Whether anything is
enforced is a property of the substrate (`Capacity.enforcement`).
"""

from __future__ import annotations

from typing import Final

from prefect_bt.definitions import Compute, TrainingJob, parse_memory
from prefect_bt.ledger.records import Resources
from prefect_bt.planning.translation import gpu_count, gpu_type
from prefect_bt.substrates.protocol import Capacity, Enforcement

HOST_SHARE_DIVISOR: Final = 20
"""One part in so many of the machine's memory is left to the host: no share includes it."""
_GIB: Final = 1024**3
_MIB: Final = 1024**2


def allocate_resources(job: TrainingJob, capacity: Capacity) -> Resources:
    """Return what every node of the job gets on this machine. The job must fit (refusals)."""
    gpus = gpu_count(job)
    asked_memory = parse_memory(job.compute.memory)
    cpus, memory = _gpu_share(capacity, gpus)
    cpus, memory = max(job.compute.cpu_count, cpus), max(asked_memory, memory)
    return Resources(
        cpus=cpus,
        memory=memory,
        gpus=gpus,
        gpu_type=gpu_type(job),
        shared_memory=_shared_memory(job.compute, capacity, memory if gpus else 0),
        why=_explain(job.compute, capacity, gpus),
        limits=capacity.enforcement is Enforcement.LIMITS,
    )


def format_resources(resources: Resources) -> str:
    """Return one line: `26 CPUs, 228 GiB, shared memory 114 GiB: the share of 1 of 4 GPUs; ...`."""
    shared = resources.shared_memory
    amounts = [
        f"{resources.cpus} CPU{'s' if resources.cpus != 1 else ''}",
        format_memory(resources.memory),
        f"shared memory {format_memory(shared)}" if shared else "",
    ]
    line = ", ".join(amount for amount in amounts if amount)
    return f"{line}: {resources.why}" if resources.why else line


def format_memory(size: int) -> str:
    """Return a size in GiB or MiB, with at most one digit after the point.

    >>> format_memory(228 * 1024**3), format_memory(3 * 1024**3 // 2), format_memory(128 * 1024**2)
    ('228 GiB', '1.5 GiB', '128 MiB')
    """
    unit, name = (_GIB, "GiB") if size >= _GIB else (_MIB, "MiB")
    text = f"{size / unit:.1f}"
    return f"{text.removesuffix('.0')} {name}"


def _gpu_share(capacity: Capacity, gpus: int) -> tuple[int, int]:
    """Return the CPUs and the memory that belong to so many of the machine's GPUs."""
    if not (gpus and capacity.is_machine):
        return 0, 0
    cpus = max(1, capacity.cpus * gpus // capacity.gpus)
    return cpus, _round_down(_memory_for_jobs(capacity) * gpus // capacity.gpus)


def _memory_for_jobs(capacity: Capacity) -> int:
    return capacity.memory - capacity.memory // HOST_SHARE_DIVISOR


def _round_down(size: int) -> int:
    """Return whole GiB, or whole MiB below 8 GiB."""
    unit = _GIB if size >= 8 * _GIB else _MIB
    return size // unit * unit


def _shared_memory(compute: Compute, capacity: Capacity, memory: int) -> int:
    """Return half of what a node may use, as Linux does; 0 where a node has the machine's own.

    `memory`: what a node with GPUs gets; 0 for a node without. Nodes without GPUs divide the
    machine among the gang, unless limits are enforced.
    """
    if capacity.enforcement in {Enforcement.NONE, Enforcement.REQUESTS}:
        return 0
    asked = parse_memory(compute.memory)
    if not memory and capacity.enforcement is Enforcement.RESERVED:
        memory = max(asked, _round_down(_memory_for_jobs(capacity) // compute.node_count))
    return (memory or asked) // 2


def _explain(compute: Compute, capacity: Capacity, gpus: int) -> str:
    parts = [_format_basis(compute, capacity, gpus), f"{_format_minimums(compute)} are minimums"]
    if capacity.enforcement is Enforcement.NONE:
        parts.append("they are checked, not enforced: the node shares this machine")
    elif capacity.enforcement is Enforcement.REQUESTS:
        parts.append("they are requests of its pod, not limits")
    elif capacity.enforcement is Enforcement.LIMITS:
        parts.append("they are hard limits (enforce_limits)")
    return "; ".join(parts)


def _format_basis(compute: Compute, capacity: Capacity, gpus: int) -> str:
    if not (gpus and capacity.is_machine):
        free = capacity.enforcement is not Enforcement.LIMITS
        more = ", and more while the machine has it free" if free else ""
        return f"the requested amount{more}"
    cpus, memory = _gpu_share(capacity, gpus)
    share = f"the share of {gpus} of {capacity.gpus} GPU{'s' if capacity.gpus != 1 else ''}"
    more_cpus = compute.cpu_count > cpus
    more_memory = parse_memory(compute.memory) > memory
    if more_cpus and more_memory:
        return f"the requested amount, more than {share}"
    if more_cpus:
        return f"CPUs as requested, memory {share}"
    return f"memory as requested, CPUs {share}" if more_memory else share


def _format_minimums(compute: Compute) -> str:
    default = Compute()
    cpus = compute.cpu_count != default.cpu_count
    memory = compute.memory != default.memory
    if not cpus and not memory:
        return "cpu_count and memory (defaults)"
    return (
        f"cpu_count {compute.cpu_count if cpus else '(default)'} and "
        f"memory {compute.memory if memory else '(default)'}"
    )
