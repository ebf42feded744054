"""Read the files in a pod's Secret, and create the folder and the pipes of its node."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prefect_bt import codec
from prefect_bt.host.nodes import pod_layout
from prefect_bt.host.nodes.container_pipes import PIPE_NAMES
from prefect_bt.host.nodes.handle import HostHandle
from prefect_bt.host.nodes.launch import NodeLauncher
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.ledger.node_objects import GangObjects
from prefect_bt.object_store import open_store
from prefect_bt.planning.plan import NodePlan, WeightsPlan


@dataclass(frozen=True)
class PodFiles:
    """Contents of the pod's Secret, and the folders of this container's volumes."""

    plan: NodePlan
    weights: tuple[WeightsPlan, ...]
    secrets: dict[str, str]
    environment: dict[str, str]
    state: Path = Path(pod_layout.STATE)
    control: Path = Path(pod_layout.CONTROL)
    weights_cache: Path = Path(pod_layout.WEIGHTS)

    @classmethod
    def read(cls, secret: Path, variables: Mapping[str, str]) -> PodFiles:
        """Read the Secret. OSError, ValueError if prefect-bt did not create the pod."""
        plan = codec.loads(NodePlan, (secret / pod_layout.PLAN_FILE).read_bytes())
        weights = json.loads((secret / pod_layout.WEIGHTS_FILE).read_bytes())
        return cls(
            plan.for_rank(int(variables[pod_layout.INDEX_VARIABLE])),
            tuple(codec.decode(WeightsPlan, one) for one in weights),
            json.loads((secret / pod_layout.SECRETS_FILE).read_bytes()),
            json.loads((secret / pod_layout.ENVIRONMENT_FILE).read_bytes()),
        )

    @property
    def handle(self) -> HostHandle:
        """Return the handle of the node, as for a node on one machine."""
        return HostHandle(
            JobFolder(self.state, self.plan.job_id), self.plan.attempt, self.plan.rank
        )

    @property
    def staging_log(self) -> Path:
        """Return the log of the init container. The node's log is appended to it."""
        return self.state / "staging.log"

    def open_gang(self) -> GangObjects:
        """Return the gang's objects in the store. StoreError."""
        plan = self.plan
        store = open_store(plan.store)
        return GangObjects.of_attempt(store, plan.project_id, plan.job_id, plan.attempt)

    def create_node(self) -> tuple[NodeLauncher, int]:
        """Create the node's folder and pipes. Return its launcher and the lock. OSError."""
        launcher = NodeLauncher(self.state)
        lock = launcher.create_node_folder(
            self.plan, contained=True, mounts=pod_layout.volume_mounts(self.plan)
        )
        folder = self.handle.folder
        if self.staging_log.exists():
            self.staging_log.rename(folder.log)
        folder.control.symlink_to(self.control)
        for name in PIPE_NAMES:
            # The commands can run as any user. Only this pod has the folder.
            os.mkfifo(self.control / name)
            (self.control / name).chmod(0o666)
        return launcher, lock
