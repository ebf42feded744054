"""A substrate that keeps time, state and stop requests, and a gang on it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from prefect_bt.attempts.gang_policy import Gang, Timing, launch_gang
from prefect_bt.errors import SubstrateError
from prefect_bt.host.nodes.launch import launch_nodes
from prefect_bt.ledger.records import NodePhase, NodeStatus
from prefect_bt.planning.plan import GangPlan, ImagePlan, NodePlan, Resources, WorkspacePlan
from prefect_bt.substrates.protocol import Capacity, NodeHandle


@dataclass
class Clock:
    now: float = 1000.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Script:
    """What a node does by itself: exits with `code` after `seconds`; None: never."""

    seconds: float | None = 1.0
    code: int = 0
    ignores_sigterm: bool = False
    quiet: bool = False
    silent: bool = False
    lost: bool = False
    deaf: bool = False
    """Whether its agent ignores every stop."""
    flushes: float = 0.0
    """Seconds from the end of the commands to the end of the uploads."""


@dataclass
class SimulatedNode:
    rank: int
    attempt: int
    script: Script
    clock: Clock
    began: float
    stops: list[tuple[str, bool]] = field(default_factory=list)
    ended: NodeStatus | None = None
    removed: bool = False
    given_up: int = 0

    def observe(self) -> NodeStatus:
        if self.ended is None and self.script.seconds is not None:
            at = self.began + self.script.seconds
            if self.clock.now >= at:
                self._end(self.script.code, at, lost=self.script.lost)
        if self.ended is not None:
            flushed_at = (self.ended.ended_at or 0.0) + self.script.flushes
            flushing = self.clock.now < flushed_at
            return replace(self.ended, phase=NodePhase.FLUSHING) if flushing else self.ended
        active = self.began if self.script.quiet else self.clock.now
        if self.script.silent:
            active = None
        return NodeStatus(self.rank, NodePhase.RUNNING, started_at=self.began, active_at=active)

    def stop(self, *, reason: str, force: bool = False, grace: float | None = None) -> None:
        self.stops.append((reason, force))
        if self.script.deaf:
            return
        if self.ended is None and (force or not self.script.ignores_sigterm):
            self._end(137 if force else 143, self.clock.now, reason=reason)

    def kill_unresponsive(self) -> None:
        self.given_up += 1
        if self.ended is None:
            self._end(137, self.clock.now, reason=self.stops[-1][0], lost=True)

    def kill_commands(self) -> bool:
        alive = self.ended is None
        if alive:
            self._end(137, self.clock.now)
        return alive

    def _end(self, code: int, at: float, *, reason: str = "", lost: bool = False) -> None:
        self.ended = NodeStatus(
            self.rank,
            NodePhase.LOST if lost else NodePhase.DONE,
            exit_code=None if lost else code,
            reason=reason,
            command=0,
            started_at=self.began,
            ended_at=at,
        )

    def server_address(self) -> None:
        return None

    def server_process(self) -> None:
        return None

    def log_size(self) -> int:
        return len(self.read_log(offset=0, limit=1 << 20))

    def read_log(self, *, offset: int, limit: int) -> bytes:
        return f"1 line of rank {self.rank}\n".encode()[offset : offset + limit]

    def read_metrics(self, *, offset: int, limit: int) -> bytes:
        return b""

    def remove(self) -> None:
        self.removed = True


@dataclass
class Simulated:
    scripts: list[Script]
    clock: Clock = field(default_factory=Clock)
    refuse: int | None = None
    nodes: list[SimulatedNode] = field(default_factory=list)
    secrets: list[Mapping[str, str]] = field(default_factory=list)
    name: str = "simulated"

    def capacity(self) -> Capacity:
        return Capacity(cpus=64, memory=1 << 40, gpus=0)

    def leader_address(self, job_id: str, attempt: int) -> str:
        return f"{job_id}-{attempt}"

    def launch(self, gang: GangPlan, *, secrets: Mapping[str, str]) -> list[NodeHandle]:
        return launch_nodes(gang, self.launch_node, secrets=secrets)

    def launch_node(self, node: NodePlan, secrets: Mapping[str, str]) -> NodeHandle:
        self.secrets.append(secrets)
        if node.rank == self.refuse:
            raise SubstrateError("no room", substrate=self.name, rank=node.rank)
        made = SimulatedNode(
            node.rank, node.attempt, self.scripts[node.rank], self.clock, self.clock.now
        )
        self.nodes.append(made)
        return made

    def list_nodes(self, job_id: str) -> list[NodeHandle]:
        return list(self.nodes)


def pace_of(clock: Clock, poll: float = 0.1) -> Timing:
    return Timing(lambda: clock.now, clock.sleep, poll, monotonic=lambda: clock.now)


def plan(size: int) -> GangPlan:
    node = NodePlan(
        job_id="abc1234",
        project_id="p",
        attempt=0,
        rank=0,
        group_size=size,
        store="",
        image=ImagePlan("x"),
        commands=("true",),
        environment={},
        secret_environment={},
        volumes=(),
        resources=Resources(),
        workspace=WorkspacePlan("/b10/workspace"),
        grace=30.0,
    )
    nodes = tuple(replace(node, rank=rank) for rank in range(size))
    return GangPlan("abc1234", "job-1", "p", "p", 0, "simulated", nodes)


def run(
    *scripts: Script, stop_at: float | None = None, patience: float = 600.0
) -> tuple[Simulated, Gang]:
    substrate = Simulated(list(scripts))
    clock = substrate.clock
    timing = pace_of(clock, 0.5)
    gang = launch_gang(substrate, plan(len(scripts)), secrets={}, timing=timing)
    gang.straggler_patience = patience

    def stop_requested() -> bool:
        return stop_at is not None and clock.now >= 1000 + stop_at

    gang.watch(stop_requested=stop_requested, on_change=lambda _: None)
    gang.wait_for_flush()
    return substrate, gang
