"""Environment variables of a node that users' scripts rely on; never renamed, only added to."""

from __future__ import annotations

from typing import Final

RESERVED_PREFIX: Final = "BT_"
RESERVED_NAMES: Final = ("PORT", "HOSTNAME")
"""Further variables that the platform reserves. A definition must not set them."""
JOB_ID_VARIABLE: Final = "BT_TRAINING_JOB_ID"
RANK_VARIABLE: Final = "BT_NODE_RANK"
LEADER_PORT_VARIABLE: Final = "BT_LEADER_PORT"
SECRET_PREFIX: Final = "PREFECT_BT_SECRET_"


def is_reserved(name: str) -> bool:
    """Return whether the platform reserves the variable."""
    return name.startswith(RESERVED_PREFIX) or name in RESERVED_NAMES


def rendezvous_variables(gang: str, *, address: str, port: int, group_size: int) -> dict[str, str]:
    """Return variables that launchers on every node of a gang use unless flags override them.

    `gang` names the attempt. A single node gets only BT_LEADER_PORT: torchrun then chooses a free
    port, so that two jobs can run on one machine.
    """
    ours = {LEADER_PORT_VARIABLE: str(port)}
    if group_size == 1:
        return ours
    return {
        **ours,
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": str(port),
        # Two gangs with the same endpoint must not accept each other's nodes.
        "PET_RDZV_ID": gang,
    }
