"""The port of each gang that this process launches: one for all of its nodes."""

from __future__ import annotations

import os
from typing import NamedTuple

from prefect_bt.filesystem.directories import find_paths
from prefect_bt.host.nodes.files import read_record
from prefect_bt.host.ports import reserve_port
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.planning.plan import NodePlan
from prefect_bt.reserved_variables import LEADER_PORT_VARIABLE, rendezvous_variables


class _Gang(NamedTuple):
    port: int
    descriptor: int
    launched: frozenset[int] = frozenset()


class GangPorts:
    """Holds a port until every node of its gang has it; from then on the nodes do."""

    def __init__(self, leader_address: str) -> None:
        self._leader = leader_address
        self._gangs: dict[tuple[str, int], _Gang] = {}

    def get_variables(self, node: NodePlan, job: JobFolder) -> dict[str, str]:
        """Return the port variables of the gang's nodes. Raise OSError if no port is free."""
        name = f"{node.job_id}-{node.attempt}"
        port = self._assign_port(node, job, name)
        return rendezvous_variables(
            name, address=self._leader, port=port, group_size=node.group_size
        )

    def inherited_descriptors(self, node: NodePlan) -> tuple[int, ...]:
        """The descriptor that the node's process inherits."""
        gang = self._gangs.get(_key(node))
        return (gang.descriptor,) if gang is not None else ()

    def mark_launched(self, node: NodePlan) -> None:
        """Record that the node holds the port now."""
        gang = self._gangs.get(_key(node))
        if gang is None:
            return
        gang = gang._replace(launched=gang.launched | {node.rank})
        self._gangs[_key(node)] = gang
        if len(gang.launched) == node.group_size:
            self.release(node)

    def release(self, node: NodePlan) -> None:
        """Release the port after the gang's launch, or its failure. Idempotent."""
        gang = self._gangs.pop(_key(node), None)
        if gang is not None:
            os.close(gang.descriptor)

    def _assign_port(self, node: NodePlan, job: JobFolder, name: str) -> int:
        gang = self._gangs.get(_key(node))
        if gang is not None:
            return gang.port
        known = _find_assigned_port(node, job)
        if known:
            return known
        for job_id, attempt in list(self._gangs):
            if job_id == node.job_id:  # an attempt that never got all of its nodes
                os.close(self._gangs.pop((job_id, attempt)).descriptor)
        number, descriptor = reserve_port(name, state_dir=job.state_dir)
        self._gangs[_key(node)] = _Gang(number, descriptor)
        return number


def _key(node: NodePlan) -> tuple[str, int]:
    return node.job_id, node.attempt


def _find_assigned_port(node: NodePlan, job: JobFolder) -> int:
    """Return the port that another process gave the gang's first nodes; 0 for none."""
    for path in find_paths(
        job.node_folder(node.attempt, node.rank).path.parent, "rank-*/plan.json"
    ):
        plan = read_record(NodePlan, path)
        if plan is not None and LEADER_PORT_VARIABLE in plan.environment:
            return int(plan.environment[LEADER_PORT_VARIABLE])
    return 0
