"""Allocate CPUs, memory and shared memory to each node of a job, with the reason. Pure.

`cpu_count` and `memory` of a definition are minimums. A node with GPUs gets at least the machine's
share for them. A node without GPUs gets the requested amount and may use what is free. Whether an
amount is enforced is a property of the substrate (`Capacity.enforcement`).
"""

from __future__ import annotations

from typing import Final

from prefect_bt.definitions import Compute, TrainingJob, parse_memory
from prefect_bt.ledger.records import Resources
from prefect_bt.planning.node_layout import gpu_count, gpu_type
from prefect_bt.substrates.protocol import Capacity, Enforcement

HOST_SHARE_DIVISOR: Final = 20
"""The host keeps one part in this number of the machine's memory."""
_LIMITS: Final = {
    Enforcement.NONE: "; they are checked, not enforced: the node shares this machine",
    Enforcement.RESERVED: "",
    Enforcement.REQUESTS: "; they are requests of its pod, not limits",
    Enforcement.LIMITS: "; they are hard limits (enforce_limits)",
}
_GIB: Final = 1024**3
_MIB: Final = 1024**2


def allocate_resources(job: TrainingJob, capacity: Capacity) -> Resources:
    """Return the resources of every node of the job on this machine. The job must be valid."""
    gpus, compute = gpu_count(job), job.compute
    cpus, memory = _gpu_share(capacity, gpus)
    basis = _format_basis(compute, capacity, gpus, cpus, memory)
    memory = max(parse_memory(compute.memory), memory)
    return Resources(
        cpus=max(compute.cpu_count, cpus),
        memory=memory,
        gpus=gpus,
        gpu_type=gpu_type(job),
        shared_memory=_shared_memory(compute, capacity, memory if gpus else 0),
        why=f"{basis}; {_format_minimums(compute)} are minimums{_LIMITS[capacity.enforcement]}",
        limits=capacity.enforcement is Enforcement.LIMITS,
    )


def format_resources(resources: Resources) -> str:
    """Return one line: `26 CPUs, 228 GiB, shared memory 114 GiB: the share of 1 of 4 GPUs; ...`."""
    line = f"{resources.cpus} CPU{'s' if resources.cpus != 1 else ''}"
    line += f", {format_memory(resources.memory)}"
    if resources.shared_memory:
        line += f", shared memory {format_memory(resources.shared_memory)}"
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
    """Return the CPUs and the bytes of memory that belong to this number of the machine's GPUs."""
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
    """Return half of what a node may use, as Linux does; 0 if a node uses that of the machine.

    `memory`: amount of a node with GPUs; 0 for a node without. Nodes without GPUs divide the
    machine among the gang, unless limits are enforced.
    """
    if capacity.enforcement in {Enforcement.NONE, Enforcement.REQUESTS}:
        return 0
    asked = parse_memory(compute.memory)
    if not memory and capacity.enforcement is Enforcement.RESERVED:
        memory = max(asked, _round_down(_memory_for_jobs(capacity) // compute.node_count))
    return (memory or asked) // 2


def _format_basis(compute: Compute, capacity: Capacity, gpus: int, cpus: int, memory: int) -> str:
    """Return why a node gets its amounts; `cpus`, `memory`: the share of its GPUs."""
    if not cpus:
        free = capacity.enforcement is not Enforcement.LIMITS
        more = ", and more while the machine has it free" if free else ""
        return f"the requested amount{more}"
    share = f"the share of {gpus} of {capacity.gpus} GPU{'s' if capacity.gpus != 1 else ''}"
    more_memory = parse_memory(compute.memory) > memory
    if compute.cpu_count > cpus:
        return (
            f"the requested amount, more than {share}"
            if more_memory
            else f"CPUs as requested, memory {share}"
        )
    return f"memory as requested, CPUs {share}" if more_memory else share


def _format_minimums(compute: Compute) -> str:
    default = Compute()
    cpus = str(compute.cpu_count) if compute.cpu_count != default.cpu_count else "(default)"
    memory = compute.memory if compute.memory != default.memory else "(default)"
    if cpus == memory == "(default)":
        return "cpu_count and memory (defaults)"
    return f"cpu_count {cpus} and memory {memory}"
