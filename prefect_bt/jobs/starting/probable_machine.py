"""Choose the machine for which a push plans its job: this one, or another one of the store's queue.

The queue decides again when the job starts. A job that fits here costs no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from prefect_bt.definitions import TrainingJob
from prefect_bt.jobs.starting.cluster_reader import find_job_cluster
from prefect_bt.jobs.starting.start_queued import measure_this_machine
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.planning.machine_offers import THIS_MACHINE, MachineOffer, has_enough
from prefect_bt.planning.node_layout import gpu_count, gpu_type
from prefect_bt.queue.machines import choose_gpu_type
from prefect_bt.queue.overview import list_machines_by_use
from prefect_bt.queue.records import KUBERNETES, Machine
from prefect_bt.settings import Settings
from prefect_bt.substrates.protocol import Capacity, Enforcement, Substrate


@dataclass(frozen=True)
class ProbableMachine:
    """The machine that will probably run a job, or all machines if none can."""

    capacity: Capacity
    name: str = THIS_MACHINE
    refused: tuple[MachineOffer, ...] = ()
    """What each machine has, if none has enough."""
    away: str = ""
    """What to do so that a machine that is away runs the job; "" if none can."""


def find_probable_machine(
    ledger: Ledger, job: TrainingJob, substrate: Substrate, *, only_here: bool
) -> ProbableMachine:
    """Return this machine if it can run the job, else the smallest other one that can.

    A substrate that does not answer is no matter if another machine runs the job.
    """
    settings = Settings()
    if substrate.name == KUBERNETES:
        find_job_cluster(ledger, settings)  # refuses a job of which the cluster is not known
        return ProbableMachine(substrate.capacity())
    own = measure_this_machine(settings)
    here = None
    if only_here or substrate.name in own.substrates:
        here = _limit(substrate.capacity(), own)
        offer = MachineOffer(THIS_MACHINE, here, own.gpus.get(gpu_type(job), 0))
        if only_here or has_enough(job, offer):
            return ProbableMachine(here)
    enforcement = _find_enforcement(substrate.name, settings)
    used, away = (
        [x for x in machines if x.host != own.host and substrate.name in x.substrates]
        for machines in list_machines_by_use(ledger.store)
    )
    if not used:
        chosen = ProbableMachine(here or _limit(substrate.capacity(), own))
    else:
        chosen = _choose(job, own, here, used, enforcement)
    return replace(chosen, away=_find_away(job, own, away, enforcement))


def _choose(
    job: TrainingJob,
    own: Machine,
    here: Capacity | None,
    others: Sequence[Machine],
    enforcement: Enforcement,
) -> ProbableMachine:
    kind = _choose_type(job, own, others)
    offers = _list_offers(others, kind, enforcement)
    mine = [MachineOffer(THIS_MACHINE, here, own.gpus.get(kind, 0))] if here else []
    fitting = [offer for offer in [*mine, *offers] if has_enough(job, offer)]
    if not fitting:
        offers = [*mine, *offers]
        return ProbableMachine(offers[0].capacity, offers[0].name, tuple(offers))
    # This machine is the first. The queue, too, prefers the machine that a job fills best.
    chosen = min(fitting, key=lambda one: (one not in mine, one.gpus, one.capacity.cpus, one.name))
    return ProbableMachine(chosen.capacity, chosen.name)


def _find_away(
    job: TrainingJob, own: Machine, away: Sequence[Machine], enforcement: Enforcement
) -> str:
    offers = _list_offers(away, _choose_type(job, own, away), enforcement)
    names = sorted({offer.name for offer in offers if has_enough(job, offer)})
    if not names:
        return ""
    take = "takes" if len(names) == 1 else "take"
    return f"{' and '.join(names)} could run it, but {take} no jobs: run `prefect-bt worker` there."


def _choose_type(job: TrainingJob, own: Machine, others: Sequence[Machine]) -> str:
    wanted = gpu_count(job) * job.compute.node_count
    return choose_gpu_type(gpu_type(job), wanted, own, others)


def _list_offers(
    machines: Sequence[Machine], kind: str, enforcement: Enforcement
) -> list[MachineOffer]:
    return [
        MachineOffer(one.name, _build_capacity(one, enforcement), one.gpus.get(kind, 0))
        for one in machines
    ]


def _limit(capacity: Capacity, machine: Machine) -> Capacity:
    """Return the capacity without what jobs may not hold on this machine."""
    cpus, memory = min(capacity.cpus, int(machine.cpus)), min(capacity.memory, machine.memory)
    return replace(capacity, cpus=cpus, memory=memory)


def _build_capacity(machine: Machine, enforcement: Enforcement) -> Capacity:
    """Return what is known of another machine: its free disk is not."""
    return Capacity(
        cpus=int(machine.cpus),
        memory=machine.memory,
        gpus=sum(machine.gpus.values()),
        gpu_types=tuple(machine.gpus),
        enforcement=enforcement,
    )


def _find_enforcement(substrate: str, settings: Settings) -> Enforcement:
    if substrate == "local":
        return Enforcement.NONE
    return Enforcement.LIMITS if settings.docker_enforce_limits else Enforcement.RESERVED
