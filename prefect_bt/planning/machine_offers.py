"""Compare a job with the machines that may run it: what none of them has, one sentence each. Pure.

All nodes of a job are on one machine, except on Kubernetes, whose amounts are not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prefect_bt.definitions import TrainingJob, parse_memory
from prefect_bt.errors import DefinitionError
from prefect_bt.planning.node_layout import gpu_count, gpu_type
from prefect_bt.substrates.protocol import Capacity

THIS_MACHINE: Final = "this machine"


@dataclass(frozen=True)
class MachineOffer:
    """What a machine can give a job. `gpus`: those of the type that the job gets there."""

    name: str
    capacity: Capacity
    gpus: int


def has_enough(job: TrainingJob, offer: MachineOffer) -> bool:
    """Return whether the machine has the minimum of one node, and the GPUs of all nodes."""
    return not [*iter_compute_shortages(job, [offer]), *iter_gpu_shortages(job, [offer])]


def iter_compute_shortages(job: TrainingJob, offers: Sequence[MachineOffer]) -> Iterator[str]:
    """Yield a sentence if no machine has the CPUs, and one if none has the memory of a node."""
    compute, cpus = job.compute, job.compute.cpu_count
    most, owner = _find_largest(offers, [offer.capacity.cpus for offer in offers])
    if cpus > most:
        yield (
            f"compute.cpu_count asks for {cpus} CPUs a node; {owner} {most}. "
            f"Ask for less: --cpu-count {most}."
        )
    try:
        wanted = parse_memory(compute.memory)
    except DefinitionError as error:
        yield f"compute.memory: {error}"
        return
    most, owner = _find_largest(offers, [offer.capacity.memory for offer in offers])
    if wanted > most:
        yield (
            f"compute.memory asks for {compute.memory} a node; {owner} {most / 1024**3:.1f}Gi. "
            f"Ask for less: --memory {int(most / 1024**2)}Mi."
        )


def iter_gpu_shortages(job: TrainingJob, offers: Sequence[MachineOffer]) -> Iterator[str]:
    """Yield a sentence if no machine has the GPUs of all nodes together."""
    each = gpu_count(job)
    wanted = each * max(job.compute.node_count, 1)
    most, owner = _find_largest(offers, [offer.gpus for offer in offers])
    if wanted <= most:
        return
    kind = gpu_type(job) or "GPU"
    per_node = f" ({each} on each of {job.compute.node_count} nodes)" if wanted > each else ""
    if len(offers) == 1:
        has = f"{owner} {most or 'no GPU'}"
    else:
        has = f"{owner} {most} {kind}" if most else f"none of the {len(offers)} machines has one"
    yield (
        f"compute.accelerator asks for {wanted} {kind}{per_node}; {has}. Ask for less, or try the "
        "code without a GPU: --accelerator none."
    )


def iter_combined_shortages(job: TrainingJob, offers: Sequence[MachineOffer]) -> Iterator[str]:
    """Yield a sentence if each amount is on some machine, and no machine has all of them."""
    alone = [*iter_compute_shortages(job, offers), *iter_gpu_shortages(job, offers)]
    if alone or any(has_enough(job, offer) for offer in offers):
        return
    has = "; ".join(_format_offer(offer) for offer in offers)
    compute, gpus = job.compute, gpu_count(job) * job.compute.node_count
    asked = f"{gpus} {gpu_type(job) or 'GPU'} and " if gpus else ""
    yield (
        f"compute asks for {asked}{compute.cpu_count} CPUs and {compute.memory} a node; none of "
        f"the {len(offers)} machines has all of it ({has}). Ask for less."
    )


def _find_largest(offers: Sequence[MachineOffer], amounts: Sequence[int]) -> tuple[int, str]:
    """Return the largest amount, and the beginning of a sentence about the machine that has it."""
    most = max(amounts)
    name = offers[amounts.index(most)].name
    if len(offers) == 1:
        return most, f"{name} has"
    return most, f"the largest of the {len(offers)} machines is {name} with"


def _format_offer(offer: MachineOffer) -> str:
    capacity = offer.capacity
    gpus = f"{offer.gpus} GPUs, " if offer.gpus else ""
    return f"{offer.name}: {gpus}{capacity.cpus} CPUs, {capacity.memory / 1024**3:.1f}Gi"
