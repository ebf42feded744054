"""What the gang asks of a place that runs nodes.

An adapter is three small things: a pure function out (node plan -> what the place understands), a
total table in (the place's states -> NodeStatus), an exception map at the call. Policy (fail fast,
wait, stop together) lives once, in prefect_bt.attempts.gang.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from threading import Event
from typing import TYPE_CHECKING, Protocol

from prefect_bt.ledger.records import NodeStatus
from prefect_bt.planning.plan import GangPlan, ImagePlan

if TYPE_CHECKING:
    from prefect_bt.host.processes import ProcessIdentity
    from prefect_bt.text.progress import ProgressCallback


class Enforcement(StrEnum):
    """How a substrate treats the CPUs and the memory of a node."""

    NONE = "none"
    """Planning checks them; nodes share the machine and its `/dev/shm`."""
    RESERVED = "reserved"
    """They weigh when the machine is busy; a node may use more."""
    REQUESTS = "requests"
    """Kubernetes places a node where they are free; a node may use more."""
    LIMITS = "limits"
    """A node never has more."""


@dataclass(frozen=True)
class Capacity:
    """What one node may have at most. `memory`, `disk` in bytes; `gpu_types` as enum spellings."""

    cpus: int
    memory: int
    gpus: int
    gpu_types: tuple[str, ...] = ()
    disk: int = 0
    exact_paths: bool = True
    """Whether folders are mounted at the exact paths of the definition, not mapped."""
    mapped_reason: str = ""
    enforcement: Enforcement = Enforcement.NONE
    is_machine: bool = True
    """True if the amounts are one machine's, of which a node with GPUs gets its share."""
    store_problem: str = ""
    """Sentences: why nodes cannot use the store, and what to change; "" if they can."""


@dataclass(frozen=True)
class PreparedImage:
    """`reference` is what a record pins, so that every attempt runs the same image.

    `notes` are sentences for whoever runs the job.
    """

    reference: str
    notes: tuple[str, ...] = ()


class NodeHandle(Protocol):
    """A launched node, as seen from any process."""

    @property
    def rank(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    def observe(self) -> NodeStatus:
        """What the node last said, or LOST when its process is gone without a word. Cheap."""
        ...

    def stop(self, *, reason: str, force: bool = False, grace: float | None = None) -> None:
        """Ask the commands to end (SIGTERM to every group), or end them now. Idempotent.

        `grace`: seconds until the asker means to force it; None: the plan's. Should the asker die,
        the node does so itself a little later.

        The node goes on to its final flush either way.
        """
        ...

    def kill_unresponsive(self) -> None:
        """End a node whose agent does not answer a forced stop: it hangs, or is stopped itself.

        The commands are taken from it and the agent is killed. What is left of the node flushes and
        ends as LOST. Called again while that does not happen either, it spares nothing but a flush
        that goes on. Does nothing for a node that was not asked to stop.
        """
        ...

    def kill_commands(self) -> bool:
        """SIGKILL to the commands, as an operator or the kernel would; whether there were any.

        The node goes on to its final flush, and its status tells what happened to them.
        """
        ...

    def server_address(self) -> str | None:
        """`host:port` of what listens on the node's BT_LEADER_PORT, as this machine reaches it.

        None while that is not known, and once the address may be another node's.
        """
        ...

    def server_process(self) -> ProcessIdentity | None:
        """The process of this machine with whose end the server's address is given up.

        None where the address stays the node's own.
        """
        ...

    def log_size(self) -> int:
        """Return the bytes of the log that can be read now, 0 if there is none."""
        ...

    def read_log(self, *, offset: int, limit: int) -> bytes:
        """Return raw bytes from `offset`; prefect_bt.logs.line_format has the line format."""
        ...

    def remove(self) -> None:
        """Delete everything the node left on its substrate but committed data. Idempotent.

        A node that still runs is killed first. Local files of an upload that failed are kept.
        """
        ...


class Substrate(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def supports_images(self) -> bool:
        """Whether nodes run in the image of the definition."""
        ...

    def capacity(self) -> Capacity: ...

    def warm_up(self) -> None:
        """Nodes will be launched soon: whatever can be got ready is, in the background."""
        ...

    def prepare_image(
        self,
        image: ImagePlan,
        *,
        secrets: Mapping[str, str],
        on_progress: ProgressCallback | None = None,
        cancelled: Event | None = None,
    ) -> PreparedImage:
        """Bring the image to where nodes are launched, if there are `supports_images`. Blocks.

        `secrets` maps reference names to values. ImageError, also soon after `cancelled` is set.
        """
        ...

    def leader_address(self, job_id: str, attempt: int) -> str:
        """What BT_LEADER_ADDR holds on every node of the attempt."""
        ...

    def launch(self, gang: GangPlan, *, secrets: Mapping[str, str]) -> Sequence[NodeHandle]:
        """Launch every node of the attempt or none, and return their handles in rank order.

        `secrets` maps the names of references to values. A node gets only those that it names.
        Raises SubstrateError, also for an attempt that was launched before.
        """
        ...

    def list_nodes(self, job_id: str) -> Sequence[NodeHandle]:
        """Every node of the job that this substrate still knows, of any attempt."""
        ...
