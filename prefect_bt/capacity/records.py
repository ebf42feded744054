"""What jobs ask for, what machines offer, and which job holds what. Sizes in bytes, times in epoch
seconds."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Demand:
    """What a job holds while it runs: the sum over its nodes."""

    gpus: int = 0
    gpu_type: str = ""
    """Type of the GPUs as in the definition; "" without GPUs."""
    cpus: int = 1
    memory: int = 0


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
    at: float
    """When the lease began."""

    @property
    def ends_at(self) -> float | None:
        """Return when the job has ended at the latest; None if that is unknown."""
        return None if self.job.run_time is None else self.at + self.job.run_time


@dataclass(frozen=True)
class Machine:
    """What a machine offers to jobs, as it reported last."""

    host: str
    """ID of its state folder."""
    name: str
    cpus: int
    memory: int
    gpus: dict[str, int] = field(default_factory=dict[str, int])
    """Number of GPUs by type."""
    seen_at: float = 0.0
    """When a process that takes jobs reported it last; 0: none has."""
    substrates: tuple[str, ...] = ("local", "docker")
    """Substrates that run nodes there."""


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
