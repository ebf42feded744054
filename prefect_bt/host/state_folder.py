"""Paths of the files of nodes on this machine. Only its user can enter the folder (mode 0700).

<state_dir>/
    id                              distinguishes state folders (prefect_bt.host.job_lock)
    jobs/<job id>/
        owner.lock                  flock of the job's owner process (prefect_bt.host.job_lock)
        rank-<r>/
            checkpoints/            checkpoint directory, kept across attempts
            set-aside/attempt-<n>/  incomplete checkpoints that a retry moved away
        attempt-<n>/rank-<r>/       NodeFolder
            lock                    flock of guard and agent; free when both have ended
            node.json               NodeRecord; written before any process exists
            plan.json               NodePlan, without values of secrets
            status.json  upload.json  stop.json
            log  agent.log  metrics
            workspace/  scratch/  loaded/
            root/  mirrors/         private root of the view; contains only mount points
            control/                pipes into its container (prefect_bt.host.nodes.container_pipes)
            container.json          identity of the container
            ready  go               in a pod: files by which a gang starts its commands together
            mapped/                 substitutes for parent folders when paths are mapped
    cache/bases/<project id>  cache/projects/<project id>  cache/teams/<name>
    cache/huggingface/<project id>  `huggingface` in the base, and /root/.cache/huggingface
    cache/environments/<project id> the project's Python environments (prefect_bt.host.python)
    weights/trees/<name>/files      read-only files of a source at one revision (prefect_bt.weights)
    gpus/<i>.lock                   flock held while a node uses the device
    deployments/<quoted name>/      routers of serving deployments (prefect_bt.serving.router)
    engines/<address>               Docker Engines that have run nodes (substrates.docker.endpoints)
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from prefect_bt.object_keys import quote_name
from prefect_bt.planning.plan import NodePlan, Volume, VolumeKind


@dataclass(frozen=True)
class JobFolder:
    """`<state_dir>/jobs/<job id>`."""

    state_dir: Path
    job_id: str

    @property
    def path(self) -> Path:
        return self.state_dir / "jobs" / self.job_id

    @property
    def owner_lock(self) -> Path:
        return self.path / "owner.lock"

    def rank_folder(self, rank: int) -> Path:
        """Return the folder of a rank that is kept across attempts."""
        return self.path / f"rank-{rank}"

    def checkpoints_folder(self, rank: int) -> Path:
        return self.rank_folder(rank) / "checkpoints"

    def neighbor_folders(self, plan: NodePlan) -> dict[int, Path]:
        """Return the checkpoint folders of the gang's other ranks."""
        others = (rank for rank in range(plan.group_size) if rank != plan.rank)
        return {rank: self.checkpoints_folder(rank) for rank in others}

    def node_folder(self, attempt: int, rank: int) -> NodeFolder:
        return NodeFolder(self.path / f"attempt-{attempt}" / f"rank-{rank}")


class NodeFolder:
    """`<state_dir>/jobs/<job id>/attempt-<n>/rank-<r>`, and the paths of the files in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = path / "lock"
        self.record = path / "node.json"
        self.plan = path / "plan.json"
        self.status = path / "status.json"
        self.upload_status = path / "upload.json"
        self.stop_request = path / "stop.json"
        self.log = path / "log"
        self.metrics = path / "metrics"
        self.agent_log = path / "agent.log"
        self.root = path / "root"
        self.mirrors = path / "mirrors"
        self.control = path / "control"
        self.container_record = path / "container.json"
        self.ready, self.go = path / "ready", path / "go"
        self.checkpoints = path.parent.parent / path.name / "checkpoints"
        """Checkpoint directory of the rank, kept across attempts."""


@dataclass(frozen=True)
class NodeRecord:
    """Launch of a node, written before the node exists.

    `mark` is in the environment of each of its processes. `uploader` is the command line of its
    uploader; empty for the default one.
    """

    job_id: str
    attempt: int
    rank: int
    mark: str
    state_dir: str
    orphan_deadline: float | None
    """Seconds after which it stops if no process owns its job; None: it continues."""
    map_paths: bool = False
    """Whether to map paths even if a mount namespace is possible."""
    uploader: tuple[str, ...] = ()
    python: str | None = None
    """Value of PREFECT_BT_PYTHON; None: its commands get no Python environment of the project."""
    contained: bool = False
    """Whether its commands run in a container, and not directly on this machine."""
    mounts: tuple[tuple[str, str], ...] = ()
    """In a pod: paths of each volume in the commands' container and in the agent's container."""

    @property
    def in_pod(self) -> bool:
        """Return whether the node is a pod, whose volumes and containers Kubernetes makes."""
        return bool(self.mounts)


def make_mark(state_dir: Path, *, job_id: str, attempt: int, rank: int) -> str:
    """Return the mark that every process of one launch has in its environment."""
    return f"{job_id}.{attempt}.{rank}.{state_dir_id(state_dir)}{os.urandom(8).hex()}"


def state_dir_id(state_dir: Path) -> str:
    """Return eight characters that identify a state folder, also in a container at this path."""
    facts = state_dir.stat()
    return f"{zlib.crc32(f'{state_dir}:{facts.st_dev}:{facts.st_ino}'.encode()):08x}"


def volume_folder(volume: Volume, *, plan: NodePlan, state_dir: Path, node: NodeFolder) -> Path:
    """Return the host folder behind a volume; nothing is created.

    No such folder is inside another: a job that could write the outer one could put a link there.
    """
    key = quote_name(volume.key or plan.project_id)
    return {
        VolumeKind.WORKSPACE: node.path / "workspace",
        VolumeKind.SCRATCH: node.path / "scratch",
        VolumeKind.LOADED: node.path / "loaded",
        VolumeKind.CHECKPOINTS: JobFolder(state_dir, plan.job_id).checkpoints_folder(plan.rank),
        VolumeKind.CACHE_BASE: state_dir / "cache" / "bases" / key,
        VolumeKind.PROJECT_CACHE: state_dir / "cache" / "projects" / key,
        VolumeKind.TEAM_CACHE: state_dir / "cache" / "teams" / key,
        VolumeKind.HF_CACHE: state_dir / "cache" / "huggingface" / key,
        VolumeKind.WEIGHTS: state_dir / "weights" / "trees" / key / "files",
    }[volume.kind]


def environments_folder(state_dir: Path, project_id: str = "") -> Path:
    """Return the folder of the project's Python environments; without an id, of all projects'."""
    root = state_dir / "cache" / "environments"
    return root / quote_name(project_id) if project_id else root
