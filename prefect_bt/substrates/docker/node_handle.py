"""Handle of a node in a container in any process: its folder, and facts of the Engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from prefect_bt import codec
from prefect_bt.errors import SubstrateError
from prefect_bt.host.nodes.container_pipes import ContainerRecord
from prefect_bt.host.nodes.files import read_record, write_text_atomic
from prefect_bt.host.nodes.handle import HostHandle
from prefect_bt.host.processes import ProcessIdentity
from prefect_bt.host.state_folder import state_dir_id
from prefect_bt.ledger.records import Cause, NodeStatus, StopReason
from prefect_bt.substrates.docker.container_arguments import (
    LEADER_PORT,
    container_name,
    network_name,
)
from prefect_bt.substrates.docker.engine import SUBSTRATE_NAME, DockerEngine

CONTAINER_EXIT_TIMEOUT: Final = 90.0
"""Longest wait for a container to end, in seconds: more than an agent takes (container_runner)."""
CREATE_GRACE: Final = 2.0
"""Seconds in which the Engine may finish a request whose client is gone."""


@dataclass(frozen=True)
class DockerNodeHandle(HostHandle):
    """Handle of a node. Two handles of one node are equal and interchangeable."""

    substrate: ClassVar[str] = SUBSTRATE_NAME
    engine: DockerEngine

    def observe(self) -> NodeStatus:
        status = super().observe()
        self._remove_lingering(status)
        gone = status.stop_reason is StopReason.CONTAINER_GONE
        if not status.commands_ended or not gone or status.cause:
            return status
        explained = self._add_cause(status)
        if explained != status and status.is_over:
            with suppress(OSError):
                write_text_atomic(self.folder.status, codec.dumps(explained))
        return explained

    def server_address(self) -> str | None:
        record = self._live_record()
        return f"{record.address}:{LEADER_PORT}" if record and record.address else None

    def server_process(self) -> ProcessIdentity | None:
        record = self._live_record()
        return record.process if record else None

    def kill_unresponsive(self) -> None:
        """Remove the container, which may be the cause, then kill the node as the protocol
        requires."""
        if self.folder.stop_request.exists() and not self._read_status().is_over:
            with suppress(SubstrateError):
                self._apply_to_container(_force_remove)
        super().kill_unresponsive()

    def kill_commands(self) -> bool:
        if super().kill_commands():
            return True
        with suppress(SubstrateError):  # it no longer runs
            return self._apply_to_container(lambda client, one: client.kill(one, "SIGKILL"))
        return False

    def remove(self, *, create_grace: float = CREATE_GRACE) -> None:
        """Remove the node and its container; without the Engine, `gc` removes it later.

        `create_grace`: seconds in which the Engine may still create it after its launcher was
        killed.
        """
        with suppress(SubstrateError):
            self._remove_container(create_grace)
        super().remove()

    def _live_record(self) -> ContainerRecord | None:
        """Return the record; None after the container's end, since its address may be reused."""
        record = read_record(ContainerRecord, self.folder.container_record)
        return record if record and record.process.is_alive else None

    def _add_cause(self, status: NodeStatus) -> NodeStatus:
        """Add the Engine's reason for the end of a container that the agent did not end."""
        found: dict[str, Any] = {}
        with suppress(SubstrateError):
            name = container_name(self._read_mark())
            seen = self.engine.find(lambda client: client.inspect_container(name))
            found = seen["State"] if seen is not None else {}
        if found.get("OOMKilled"):
            return replace(status, oom=True, cause=Cause.OUT_OF_MEMORY)
        return replace(status, cause=Cause.KILLED)

    def _remove_lingering(self, status: NodeStatus) -> None:
        """Have the Engine remove a container that outlives its commands.

        Its agent ends it, but may not kill root's processes if it runs as another user.
        """
        if not status.commands_ended or self._live_record() is None:
            return
        late = time.time() - (status.ended_at or 0.0) > CONTAINER_EXIT_TIMEOUT
        if late or status.is_over or status.cause is Cause.CONTAINER_PROTOCOL:
            with suppress(SubstrateError):
                self._apply_to_container(_force_remove)

    def _remove_container(self, create_grace: float) -> None:
        if self._read_mark() and not self.folder.container_record.exists():
            # Its launch did not finish.
            deadline = time.monotonic() + create_grace
            while not self._apply_to_container(_force_remove) and time.monotonic() < deadline:
                time.sleep(0.1)
        else:
            self._apply_to_container(_force_remove)

        def drop(client: Any) -> None:
            for one in client.networks(names=[f"^{self.network}$"]):
                if not client.inspect_network(one["Id"]).get("Containers"):
                    client.remove_network(one["Id"])

        with suppress(SubstrateError):  # another node of the gang is in it, or removes it
            self.engine.find(drop)

    def _apply_to_container(self, do: Callable[[Any, str], None]) -> bool:
        """Apply the action to this launch's container; return whether there was one."""
        mark = self._read_mark()

        def act(client: Any) -> bool:
            do(client, container_name(mark))
            return True

        return bool(mark and self.engine.find(act))

    @property
    def network(self) -> str:
        return network_name(self.job.job_id, self.attempt, state_dir_id(self.job.state_dir))


def _force_remove(client: Any, one: str) -> None:
    client.remove_container(one, force=True, v=True)


def find_container_address(container: Mapping[str, Any]) -> str:
    """Return the address at which this machine reaches a container; "" for none."""
    networks: Mapping[str, Mapping[str, Any]] = container["NetworkSettings"].get("Networks") or {}
    return next((str(one["IPAddress"]) for one in networks.values() if one.get("IPAddress")), "")
