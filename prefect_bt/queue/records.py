"""What jobs ask for, what machines offer, and which job holds what. Sizes in bytes, times in epoch
seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from prefect_bt.substrates.protocol import CPUS, MEMORY, PodHost

KUBERNETES: Final = "kubernetes"
"""Substrate of the jobs that take the resources of a cluster."""


def to_cpus(thousandths: int) -> float:
    """Return the number of CPUs, a whole number as an integer."""
    whole, rest = divmod(thousandths, 1000)
    return thousandths / 1000 if rest else whole


@dataclass(frozen=True)
class Demand:
    """What a job holds while it runs: the sum over its nodes."""

    gpus: int = 0
    gpu_type: str = ""
    """Type of the GPUs as in the definition; "" without GPUs."""
    cpus: float = 1
    memory: int = 0

    @property
    def amounts(self) -> dict[str, int]:
        """Return the amounts by resource, without zeros; CPUS in thousandths."""
        amounts = {self.gpu_type: self.gpus, CPUS: round(1000 * self.cpus), MEMORY: self.memory}
        return {name: amount for name, amount in amounts.items() if amount > 0}


@dataclass(frozen=True)
class QueuedJob:
    """A job that waits, or that asks whether it may start."""

    id: str
    demand: Demand
    submitted_at: float
    """When the job was created: of two jobs with the same priority the older one is first."""
    since: float = 0.0
    """When it began to wait: later than `submitted_at` for a job that was preempted."""
    priority: int = 0
    team: str = ""
    """Name of the team; "" for the default team."""
    spot: bool = False
    """Whether it may exceed its team's cap, and is stopped when another job needs its place."""
    run_time: float | None = None
    """Seconds after which it has ended; None: unknown."""
    host: str = ""
    """ID of the state folder of the only machine that may run it; "" for any machine."""
    substrate: str = "local"
    project_id: str = ""
    cluster: str = ""
    """ID of the cluster whose machines run its pods; "" on other substrates."""
    nodes: int = 1
    event: int = -1
    """Number of the job's event since which it waits; a later event ends the wait for good."""
    node_cpus: int = 0
    """CPUs that each node needs at least; a machine with less cannot run the job."""
    node_memory: int = 0
    """Memory that each node needs at least."""
    user: str = ""
    """User that pushed the job; "" if that is unknown."""

    @property
    def pod(self) -> dict[str, int]:
        """Return the amounts of one node."""
        return {name: amount // self.nodes for name, amount in self.demand.amounts.items()}

    @property
    def rank(self) -> tuple[int, float, str]:
        """Return the sort key of the queue: priority, then age."""
        return (-self.priority, self.submitted_at, self.id)


@dataclass(frozen=True)
class Lease:
    """What a running job holds. `number` is unique in the store and grows."""

    number: int
    job: QueuedJob
    host: str
    """ID of the state folder whose processes run the job."""
    at: float = 0.0
    """When the lease began, by the store's clock."""
    nonce: str = ""

    @property
    def place(self) -> str:
        """Return the ID of the cluster or the machine whose resources the job holds."""
        return self.job.cluster or self.host

    @property
    def ends_at(self) -> float | None:
        """Return when the job has ended at the latest; None if that is unknown."""
        return None if self.job.run_time is None else self.at + self.job.run_time


@dataclass(frozen=True)
class Machine:
    """What a machine or a cluster offers to jobs, as it was reported last."""

    host: str
    """ID of its state folder, or of the cluster."""
    name: str
    cpus: float
    memory: int
    gpus: dict[str, int] = field(default_factory=dict[str, int])
    """Number of GPUs by type."""
    seen_at: float = 0.0
    """When a process that takes jobs reported it last, by the store's clock; 0: none has."""
    substrates: tuple[str, ...] = ("local", "docker")
    """Substrates that run nodes there."""
    pod_hosts: tuple[PodHost, ...] = ()
    """Machines of a cluster that may run the pods of its jobs."""

    @property
    def is_cluster(self) -> bool:
        return KUBERNETES in self.substrates

    def has_pods_of(self, job_id: str) -> bool:
        """Return whether pods of the job are on machines of the cluster."""
        return any(job_id in one.jobs for one in self.pod_hosts)


@dataclass(frozen=True)
class Limit:
    """Limit of a GPU type, for all jobs together or for those of one team."""

    gpu_type: str
    team: str | None = None
    """Name of the team, "" for the default team; None for all jobs."""
    maximum: int | None = None
    """Most GPUs that jobs hold at once, spot jobs aside; None: no limit."""
    baseline: int = 0
    """GPUs that are kept free for the team, except for spot jobs."""
    modified_at: float = 0.0
