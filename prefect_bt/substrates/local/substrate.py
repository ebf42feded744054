"""Run nodes as processes of this machine, without a server: state is in folders, locks and marks.

prefect_bt.host.state_folder lists the folders, prefect_bt.node_agent the processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Final

from prefect_bt.errors import SubstrateError
from prefect_bt.host.nodes.handle import LOOPBACK, SUBSTRATE_NAME, HostHandle
from prefect_bt.host.nodes.launch import NodeLauncher, iter_nodes, launch_nodes
from prefect_bt.host.ports import NoFreePort
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.planning.plan import GangPlan, ImagePlan, NodePlan
from prefect_bt.substrates.checks.machine import check_folder, check_gpus
from prefect_bt.substrates.local.capacity import measure_capacity, probe_mount_namespace
from prefect_bt.substrates.local.gang_ports import GangPorts
from prefect_bt.substrates.protocol import Capacity, CheckResult, CheckStatus, PreparedImage

LEADER_ADDRESS: Final = LOOPBACK


class LocalProcessSubstrate:
    """Runs nodes as processes of this machine.

    `state_dir` is on a local disk (Settings.state_dir). `orphan_deadline`: seconds for which a node
    continues while no process owns its job (host.job_lock); None: no limit. Only launches use it.
    `map_paths`: use no private views. `uploader`: command line of the uploader, for tests.
    `python`: as in NodeRecord.
    """

    def __init__(  # noqa: PLR0913 (facts of every launch)
        self,
        state_dir: Path,
        *,
        orphan_deadline: float | None = None,
        map_paths: bool = False,
        uploader: Sequence[str] = (),
        python: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.launcher = NodeLauncher(
            state_dir,
            orphan_deadline=orphan_deadline,
            map_paths=map_paths,
            uploader=uploader,
            python=python,
            environment=environment,
        )
        self.state_dir = self.launcher.state_dir
        self._ports = GangPorts(LEADER_ADDRESS)

    @property
    def name(self) -> str:
        return SUBSTRATE_NAME

    @property
    def supports_images(self) -> bool:
        return False

    def capacity(self) -> Capacity:
        return measure_capacity(
            self.state_dir, environment=self.launcher.environment, mapped_reason=self._mapped_reason
        )

    def leader_address(self, job_id: str, attempt: int) -> str:
        return LEADER_ADDRESS

    def warm_up(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def prepare_image(self, image: ImagePlan, **given: object) -> PreparedImage:
        """Do nothing: the commands run with the software of this machine."""
        _ = given
        return PreparedImage(image.reference)

    def check_access(self) -> Iterator[CheckResult]:
        yield check_folder(self.state_dir)
        mapped = self._mapped_reason
        detail = f"they are mapped, not mounted ({mapped})" if mapped else "mounted as on Baseten"
        yield CheckResult("Paths of a job", CheckStatus.PASSED, detail)
        yield check_gpus(self.launcher.environment)

    def launch(self, gang: GangPlan, *, secrets: Mapping[str, str]) -> list[HostHandle]:
        """Launch the nodes one by one, as processes of this machine; see the protocol."""
        return launch_nodes(gang, self.launch_node, secrets=secrets)

    def launch_node(self, node: NodePlan, *, secrets: Mapping[str, str]) -> HostHandle:
        """Start the node and return at once; SubstrateError leaves nothing behind."""
        handle = HostHandle(JobFolder(self.state_dir, node.job_id), node.attempt, node.rank)
        try:
            ports = self._ports.get_variables(node, handle.job)
            node = replace(node, environment={**ports, **node.environment})
            self._start(node, handle, secrets)
        except (OSError, ValueError) as error:
            self._ports.release(node)
            if not isinstance(error, FileExistsError):
                handle.remove()
            raise _launch_error(node, error) from error
        self._ports.mark_launched(node)
        return handle

    def _start(self, node: NodePlan, handle: HostHandle, secrets: Mapping[str, str]) -> None:
        lock = self.launcher.create_node_folder(node)
        try:
            started = self.launcher.start(
                handle.folder, (lock, *self._ports.inherited_descriptors(node))
            )
            started.send_secrets(secrets)
        finally:
            os.close(lock)

    def list_nodes(self, job_id: str) -> Sequence[HostHandle]:
        job = JobFolder(self.state_dir, job_id)
        return [HostHandle(job, attempt, rank) for attempt, rank in iter_nodes(job)]

    @cached_property
    def _mapped_reason(self) -> str:
        if self.launcher.map_paths:
            return "as asked"
        return probe_mount_namespace(self.launcher.agent_environment(""))


create_substrate = LocalProcessSubstrate
"""For the table of substrates."""


def _launch_error(node: NodePlan, error: Exception) -> SubstrateError:
    what, step = f"could not be launched: {error}", "Check that PREFECT_BT_STATE_DIR is writable."
    if isinstance(error, FileExistsError):
        what, step = "was launched before", "Give the next attempt a new number."
    elif isinstance(error, NoFreePort):
        step = "Stop the program that listens there, or stop other jobs."
    return SubstrateError(
        f"Node {node.rank} of job {node.job_id}, attempt {node.attempt}, {what}.",
        substrate=SUBSTRATE_NAME,
        rank=node.rank,
        next_step=step,
    )
