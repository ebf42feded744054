"""The protocol between a gang and a substrate, which runs its nodes.

A substrate is a pure function (node plan -> the platform's terms), a total table (the platform's
states -> NodeStatus), and a map of its exceptions. The policy (fail fast, wait, stop together) is
in prefect_bt.attempts.gang_policy only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from threading import Event
from typing import TYPE_CHECKING, Final, Protocol

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


CPUS: Final = "cpus"
MEMORY: Final = "memory"


@dataclass(frozen=True)
class PodHost:
    """A machine of a cluster. Amounts: CPUS in thousandths, MEMORY in bytes, GPUs by type."""

    total: dict[str, int]
    """What the pods of jobs may request there; empty if no further pod may run there."""
    free: dict[str, int]
    """What no pod requests now."""
    jobs: dict[str, int]
    """Number of pods there of each job of prefect-bt."""
    for_gpus: bool = False
    """Whether only pods with GPUs may run there."""


@dataclass(frozen=True)
class PreparedImage:
    """An image; `reference` is pinned in the records, so that every attempt runs the same image.

    `notes` are messages for the user.
    """

    reference: str
    notes: tuple[str, ...] = ()


class CheckStatus(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It could not be checked; jobs may run nevertheless."""


@dataclass(frozen=True)
class CheckResult:
    """Result of one check of `prefect-bt check`; `next_step`: the cure, after a failure."""

    name: str
    status: CheckStatus
    detail: str
    next_step: str = ""


class NodeHandle(Protocol):
    """A launched node, in any process."""

    @property
    def rank(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    def observe(self) -> NodeStatus:
        """Return the node's last status, or LOST if its process ended without one. Cheap."""
        ...

    def stop(self, *, reason: str, force: bool = False, grace: float | None = None) -> None:
        """Stop the commands with SIGTERM to every group, or with SIGKILL by `force`. Idempotent.

        `grace`: seconds until the caller will force it; None: the plan's. If the caller dies, the
        node forces the stop itself a little later. The node continues with its final flush in both
        cases.
        """
        ...

    def kill_unresponsive(self) -> None:
        """End a node whose agent does not react to a forced stop.

        The commands and the agent are killed; the rest of the node flushes and ends as LOST. A
        further call kills everything but a running flush. Does nothing for a node without a stop
        request.
        """
        ...

    def kill_commands(self) -> bool:
        """Send SIGKILL to the commands, as an operator or the kernel would; return whether any ran.

        The node continues with its final flush, and its status shows the signal.
        """
        ...

    def server_address(self) -> str | None:
        """Return `host:port` of the server at the node's BT_LEADER_PORT, as seen from this machine.

        Return None while it is unknown, and once the address may be another node's.
        """
        ...

    def server_process(self) -> ProcessIdentity | None:
        """Return the process of this machine with whose end the server's address is released.

        Return None if the address stays the node's own.
        """
        ...

    def log_size(self) -> int:
        """Return the bytes of the log that can be read now, 0 if there is none."""
        ...

    def read_metrics(self, *, offset: int, limit: int) -> bytes:
        """Return at most `limit` bytes of the metrics; b"" at the end. SubstrateError, OSError."""
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
        """Return whether nodes run in the image of the definition."""
        ...

    def capacity(self) -> Capacity: ...

    def warm_up(self) -> None:
        """Prepare in the background for a launch that follows soon."""
        ...

    def check_access(self) -> Iterator[CheckResult]:
        """Yield what can be checked without a node: access, rights, machines. SubstrateError."""
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
        """Return the value of BT_LEADER_ADDR on every node of the attempt."""
        ...

    def launch(self, gang: GangPlan, *, secrets: Mapping[str, str]) -> Sequence[NodeHandle]:
        """Launch every node of the attempt or none, and return their handles in rank order.

        `secrets` maps the names of references to values. A node gets only those that it names.
        Raises SubstrateError, also for an attempt that was launched before.
        """
        ...

    def list_nodes(self, job_id: str) -> Sequence[NodeHandle]:
        """Return every node of the job that this substrate knows, of any attempt."""
        ...
