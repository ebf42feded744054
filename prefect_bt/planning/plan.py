"""Plans of a gang and of its nodes: frozen, printable, comparable, without values of secrets.

A plan names paths inside a node and keys of shared content; the substrate decides where a volume is
stored. Environment values are literal; a secret is the name of its reference and is resolved at
launch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from prefect_bt.ledger.records import Resources, RetentionPolicy
from prefect_bt.reserved_variables import RANK_VARIABLE


class VolumeKind(StrEnum):
    """Use of a volume: which nodes share it, and for how long."""

    WORKSPACE = "workspace"
    """One node, one attempt: the unpacked workspace."""
    SCRATCH = "scratch"
    """One node, one attempt: wiped at its end."""
    CHECKPOINTS = "checkpoints"
    """One node, all attempts of a job."""
    LOADED = "loaded"
    """One node, one attempt: checkpoints of earlier jobs, restored before the commands run."""
    CACHE_BASE = "cache_base"
    """Shared by a project's nodes and jobs: parent of the cache folders, with other files in it."""
    PROJECT_CACHE = "project_cache"
    TEAM_CACHE = "team_cache"
    HF_CACHE = "hf_cache"
    """Shared by a project's nodes and jobs: `huggingface` in the base, and the legacy mount."""
    WEIGHTS = "weights"
    """Read-only, shared by content."""


@dataclass(frozen=True)
class Volume:
    """A folder of a node. `target`: absolute path; `key`: identity of a shared volume."""

    kind: VolumeKind
    target: str
    key: str = ""
    read_only: bool = False


@dataclass(frozen=True)
class ImagePlan:
    """Image of the nodes. `auth`: docker_auth as JSON-ready values, with secret references."""

    reference: str
    auth: dict[str, object] | None = None


DEFAULT_REPEAT_DELAYS: Final = (5.0, 30.0, 120.0)


@dataclass(frozen=True)
class CheckpointPlan:
    """Upload of checkpoints. `directory`: path inside the node; times in seconds."""

    directory: str
    settle: float = 1.5
    scan: float = 1.0
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    repeat_delays: tuple[float, ...] = DEFAULT_REPEAT_DELAYS
    """Delays before each repeat of a final flush that failed."""


@dataclass(frozen=True)
class LoadedCheckpoint:
    """One committed checkpoint to restore below the load directory before the commands run."""

    project_id: str
    job_id: str
    name: str
    manifests: tuple[str, ...]
    """Object keys of the manifests, one for each rank that has a part of it."""


@dataclass(frozen=True)
class WeightsAuthPlan:
    """Authentication to a source: the fields of the method, without a secret.

    `method` is empty for a public source, and for the machine's own credentials.
    """

    method: str = ""
    role_arn: str = ""
    region: str = ""
    service_account: str = ""
    identity_provider: str = ""


@dataclass(frozen=True)
class WeightsPlan:
    """One source: the files to mirror, and their path in the node."""

    source: str
    mount_location: str
    key: str
    allow_patterns: tuple[str, ...] | None = None
    ignore_patterns: tuple[str, ...] | None = None
    secret: str = ""
    """Name of the secret reference that authenticates the source; empty if none."""
    auth: WeightsAuthPlan = field(default_factory=WeightsAuthPlan)


@dataclass(frozen=True)
class WorkspacePlan:
    """The packed workspace in the store. An empty `key` means a job without files."""

    directory: str
    key: str = ""
    sha256: str = ""
    size: int = 0
    in_image: bool = False
    """Whether the files are copied into the image's own WORKDIR, and the commands start there."""


@dataclass(frozen=True)
class NodePlan:
    """Plan of one node: everything that its agent needs."""

    job_id: str
    project_id: str
    attempt: int
    rank: int
    group_size: int
    store: str
    image: ImagePlan
    commands: tuple[str, ...]
    environment: dict[str, str]
    secret_environment: dict[str, str]
    """Names of the secret references, by variable."""
    volumes: tuple[Volume, ...]
    resources: Resources
    workspace: WorkspacePlan
    checkpoints: CheckpointPlan | None = None
    load: tuple[LoadedCheckpoint, ...] = ()
    load_directory: str = ""
    grace: float = 30.0
    """Seconds between SIGTERM and SIGKILL."""
    epoch: int = 0
    """Epoch in which its uploader commits (ledger.fencing_epochs)."""

    def for_rank(self, rank: int) -> NodePlan:
        """Return the plan of another node of the same gang: only the rank differs."""
        environment = {**self.environment, RANK_VARIABLE: str(rank)}
        return replace(self, rank=rank, environment=environment)


@dataclass(frozen=True)
class GangPlan:
    """Plan of all nodes of one attempt. `notes` are sentences for the user."""

    job_id: str
    job_name: str
    project_id: str
    project_name: str
    attempt: int
    substrate: str
    nodes: tuple[NodePlan, ...]
    weights: tuple[WeightsPlan, ...] = ()
    image_secrets: tuple[str, ...] = ()
    """Names of the secret references for pulling the image."""
    notes: tuple[str, ...] = field(default=())
    max_run_time: float | None = None
    """Seconds that the commands of all attempts may run together; None: no limit."""
    machine: str = ""
    """Name of the other machine for which it is made; "" for this one."""

    @property
    def secret_names(self) -> tuple[str, ...]:
        """Return every secret reference that the gang needs, sorted, each once."""
        names = {name for node in self.nodes for name in node.secret_environment.values()}
        names |= {w.secret for w in self.weights if w.secret}
        return tuple(sorted(names | set(self.image_secrets)))
