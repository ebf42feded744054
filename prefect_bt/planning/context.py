"""Facts that planning needs besides the definition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from prefect_bt.ledger.records import RetentionPolicy
from prefect_bt.node_paths import WORKSPACE_DIR
from prefect_bt.planning.machine_offers import THIS_MACHINE, MachineOffer
from prefect_bt.planning.plan import DEFAULT_REPEAT_DELAYS, LoadedCheckpoint, WorkspacePlan
from prefect_bt.substrates.protocol import Capacity


@dataclass(frozen=True)
class PlanContext:
    """Facts that planning needs besides the definition. Paths inside a node; times in seconds."""

    job_id: str
    job_name: str
    project_id: str
    store: str
    capacity: Capacity
    substrate: str = "local"
    leader_address: str = "127.0.0.1"
    attempt: int = 0
    epoch: int = 0
    retry_reason: str = ""
    """Value of records.Cause of the attempt before; "" if there is none or it did not fail."""
    workspace: WorkspacePlan = field(default_factory=lambda: WorkspacePlan(WORKSPACE_DIR))
    loaded_checkpoints: tuple[LoadedCheckpoint, ...] = ()
    missing_references: tuple[str, ...] = ()
    """Sentences about secrets and checkpoints that were not found."""
    grace: float = 30.0
    settle: float = 1.5
    repeat_delays: tuple[float, ...] = DEFAULT_REPEAT_DELAYS
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    supports_images: bool = False
    """Whether nodes run in the definition's image (Substrate.images)."""
    python: str = ""
    """Sentence about the Python of commands that do not run in the image; "" if there is none."""
    pinned_image: str = ""
    """Pinned reference of the job's image; "" before its first attempt."""
    machine: str = THIS_MACHINE
    """Name of the machine that the capacity belongs to, in notes."""
    refused: tuple[MachineOffer, ...] = ()
    """What each machine of the queue has, if none can run the job."""
    remedy: str = ""
    """What to do if the job is refused, besides what the problems say."""
    revisions: Mapping[str, str] = field(default_factory=dict[str, str])
    """Key of a weights source -> the revision that the job mounts; filled once it is mirrored."""
