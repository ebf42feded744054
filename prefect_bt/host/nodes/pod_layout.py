"""Paths of a node's files in the agent container of a pod, and files in its Secret.

/prefect-bt/
    secret/         plan.json      the NodePlan of rank 0
                    weights.json   the weights sources, a list of WeightsPlan
                    secrets.json   reference name -> value
                    environment.json   variables of the agent, such as the store's credentials
    state/          the state folder of this one node (host.state_folder)
    volumes/<n>/    the n-th volume of the plan; the commands container has it at its target
    weights/        the node cache of weights
    control         is mounted as /.prefect-bt in both containers (host.nodes.container_pipes)
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from prefect_bt.planning.plan import NodePlan

ROOT: Final = PurePosixPath("/prefect-bt")
SECRET: Final = ROOT / "secret"
STATE: Final = ROOT / "state"
CONTROL: Final = ROOT / "control"
WEIGHTS: Final = ROOT / "weights"
PLAN_FILE: Final = "plan.json"
WEIGHTS_FILE: Final = "weights.json"
SECRETS_FILE: Final = "secrets.json"
ENVIRONMENT_FILE: Final = "environment.json"
AGENT_USER: Final = 65532
"""User and group of the agent, unless the settings name a user for the commands."""
INDEX_VARIABLE: Final = "JOB_COMPLETION_INDEX"
"""Variable in which Kubernetes passes the rank."""


def volume_folder(number: int) -> PurePosixPath:
    """Return the folder of the plan's n-th volume in the agent's container."""
    return ROOT / "volumes" / str(number)


def volume_mounts(plan: NodePlan) -> tuple[tuple[str, str], ...]:
    """Return each volume's path in the commands' container and in the agent's."""
    return tuple((v.target, str(volume_folder(n))) for n, v in enumerate(plan.volumes))


def weights_tree(name: str) -> PurePosixPath:
    """Return the path of a published tree below WEIGHTS (weights.cache.node_cache)."""
    return PurePosixPath("trees") / name / "files"
