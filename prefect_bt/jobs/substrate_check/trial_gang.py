"""Launch two nodes without a job, and check what only nodes can: image, store, network, GPUs.

The gang is in no list of jobs. Its nodes, and its objects in the store, are deleted at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from prefect_bt.attempts.failure_causes import diagnose_node
from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.definitions import (
    AcceleratorSpec,
    CheckpointingConfig,
    Compute,
    Image,
    Runtime,
    TrainingJob,
    TrainingProject,
)
from prefect_bt.errors import PrefectBtError
from prefect_bt.filesystem.trees import remove_tree
from prefect_bt.host.job_lock import JobLock
from prefect_bt.host.state_folder import environments_folder
from prefect_bt.ledger.open_ledger import open_settings_store
from prefect_bt.ledger.records import NodeStatus
from prefect_bt.logs.line_format import PLATFORM_PREFIX
from prefect_bt.logs.rank_reader import read_last_lines
from prefect_bt.object_keys import make_id, project_prefix
from prefect_bt.planning.context import PlanContext
from prefect_bt.planning.plan import GangPlan
from prefect_bt.planning.planner import plan_gang
from prefect_bt.settings import Settings
from prefect_bt.substrates.protocol import CheckResult, CheckStatus, NodeHandle, Substrate

NODES: Final = 2
POLL_INTERVAL: Final = 0.2
_NETWORK: Final = """
import os, socket, sys, time
host, port = os.environ["BT_LEADER_ADDR"], int(os.environ.get("BT_LEADER_PORT", 29500))
deadline = time.monotonic() + 30
def say(*words):
    print("check network", *words, flush=True)
if os.environ["BT_NODE_RANK"] == "0":
    with socket.create_server(("", port)) as server:
        server.settimeout(40)
        try:
            server.accept()[0].close()
            say("passed rank 1 reached port", port, "of rank 0")
        except OSError as error:
            say("failed rank 1 did not reach port", port, "of rank 0:", error)
    sys.exit()
while True:
    try:
        socket.create_connection((host, port), 5).close()
        break
    except socket.gaierror as error:
        trouble = f"rank 1 cannot resolve {host}: {error}"
    except OSError as error:
        trouble = f"rank 1 cannot connect to {host}:{port}: {error}"
    if time.monotonic() > deadline:
        say("failed", trouble)
        break
    time.sleep(0.2)
"""
_SCRIPT: Final = f"""
mkdir -p "$BT_CHECKPOINT_DIR/checkpoint-1"
echo "rank $BT_NODE_RANK" >"$BT_CHECKPOINT_DIR/checkpoint-1/check.txt"
if command -v nvidia-smi >/dev/null; then
  nvidia-smi -L | while read -r line; do echo "check gpu $line"; done
fi
python=$(command -v python3 || command -v python) ||
  {{ echo "check network skipped the image has no Python"; exit 0; }}
"$python" -c '{_NETWORK}'
"""
_NETWORK_CURE: Final = {
    "kubernetes": "Check that the DNS of the cluster (CoreDNS) runs, and that no NetworkPolicy of "
    "the namespace blocks its pods from each other.",
    "docker": "Check that the Engine may create bridge networks (iptables, `docker network ls`).",
    "local": "Check that no firewall blocks connections within this machine.",
}


class TrialGang:
    """A gang of two nodes; the context removes it."""

    def __init__(
        self,
        substrate: Substrate,
        settings: Settings,
        image: str,
        accelerator: AcceleratorSpec | None,
        *,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`report` gets what is waited for, when it changes."""
        self._substrate, self._settings, self._report = substrate, settings, report
        self._store = open_settings_store(settings)
        self._accelerator = accelerator
        self._job_id, self._project_id = make_id(), make_id()
        self._project = _define_project(image, accelerator)
        self._handles: Sequence[NodeHandle] = ()
        self._lock = JobLock(settings.state_dir)

    def __enter__(self) -> Self:
        self._lock.acquire(self._job_id)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            for handle in self._handles:
                handle.remove()
            for info in list(self._store.list(project_prefix(self._project_id))):
                self._store.delete(info.key)
            remove_tree(environments_folder(self._settings.state_dir, self._project_id))
        finally:
            self._lock.release_and_remove()

    def run(self, *, timeout: float) -> Iterator[CheckResult]:
        """Launch the nodes, and yield the results once they have ended. PrefectBtError."""
        plan = self._plan()
        self._report("Pulling the image")
        reference = plan.nodes[0].image.reference
        if self._substrate.supports_images:
            self._substrate.prepare_image(plan.nodes[0].image, secrets={})
        self._report("Launching two nodes")
        began = time.monotonic()
        self._handles = self._substrate.launch(plan, secrets={})
        statuses = self._watch(began + timeout)
        failed = [status for status in statuses if not status.is_over or status.exit_code != 0]
        if failed:
            yield self._describe_failure(failed[0], timeout)
            return
        seconds = time.monotonic() - began
        runs = f"in {reference} " if self._substrate.supports_images else ""
        detail = f"both ran {runs}and ended after {seconds:.0f} s"
        yield CheckResult("Two nodes", CheckStatus.PASSED, detail)
        yield self._check_commits(statuses)
        lines = [line for handle in self._handles for line in _read_lines(handle)]
        yield self._check_network(lines)
        yield from self._check_gpus(lines)

    def _plan(self) -> GangPlan:
        settings, substrate = self._settings, self._substrate
        context = PlanContext(
            job_id=self._job_id,
            job_name=self._project.job.name or "",
            project_id=self._project_id,
            store=self._store.url,
            capacity=substrate.capacity(),
            substrate=substrate.name,
            leader_address=substrate.leader_address(self._job_id, 0),
            grace=settings.grace,
            settle=settings.settle,
            repeat_delays=(),
            supports_images=substrate.supports_images,
        )
        return plan_gang(self._project, context)

    def _watch(self, deadline: float) -> list[NodeStatus]:
        """Return the statuses once all nodes have ended, or at the deadline (time.monotonic)."""
        while True:
            statuses = [handle.observe() for handle in self._handles]
            running = next((status for status in statuses if not status.is_over), None)
            if running is None or time.monotonic() > deadline:
                return statuses
            self._report(_describe_progress(running))
            time.sleep(POLL_INTERVAL)

    def _describe_failure(self, status: NodeStatus, timeout: float) -> CheckResult:
        if not status.is_over:
            detail = f"not ended within {timeout:.0f} s: {_describe_progress(status)}."
            step = "Correct what it waits for, or allow more time with --timeout."
            return CheckResult("Two nodes", CheckStatus.FAILED, detail, step)
        found = diagnose_node(status)
        last = _read_lines(self._handles[status.rank])[-1:]
        shown = f"; its last line: {last[0]}" if last else ""
        detail = f"rank {status.rank}: {found.description.rstrip('.')}{shown}."
        return CheckResult("Two nodes", CheckStatus.FAILED, detail, found.remedy)

    def _check_commits(self, statuses: Sequence[NodeStatus]) -> CheckResult:
        name = "Store from a node"
        errors = [status.upload_error for status in statuses if status.upload_error]
        committed = list_checkpoints(self._store, self._project_id, self._job_id)
        ranks = {part.rank for checkpoint in committed for part in checkpoint.manifests}
        if errors or len(ranks) < NODES:
            what = errors[0] if errors else "no checkpoint arrived in the store"
            step = "Check that the nodes reach the store, and have its credentials."
            return CheckResult(name, CheckStatus.FAILED, f"{what.rstrip('.')}.", step)
        detail = "each node committed a checkpoint, which this machine can read"
        return CheckResult(name, CheckStatus.PASSED, detail)

    def _check_network(self, lines: Sequence[str]) -> CheckResult:
        name, said = "Network of two nodes", _select(lines, "check network ")
        failed = [text.removeprefix("failed ") for text in said if text.startswith("failed ")]
        if failed:
            # Rank 1 says whether the name or the connection failed.
            cure = _NETWORK_CURE.get(self._substrate.name, "")
            return CheckResult(name, CheckStatus.FAILED, f"{failed[-1]}.", cure)
        if not said or said[0].startswith("skipped "):
            detail = said[0].removeprefix("skipped ") if said else "the nodes printed nothing"
            return CheckResult(name, CheckStatus.SKIPPED, f"{detail}: use another --image")
        return CheckResult(name, CheckStatus.PASSED, said[0].removeprefix("passed "))

    def _check_gpus(self, lines: Sequence[str]) -> Iterator[CheckResult]:
        if self._accelerator is None:
            return
        seen, wanted = _select(lines, "check gpu "), NODES * (self._accelerator.count or 1)
        if len(seen) < wanted:
            detail = f"nvidia-smi lists {len(seen)} GPUs in the nodes, of {wanted}."
            step = "Install the NVIDIA Container Toolkit, on Kubernetes the GPU Operator."
            yield CheckResult("GPUs in the nodes", CheckStatus.FAILED, detail, step)
            return
        yield CheckResult("GPUs in the nodes", CheckStatus.PASSED, seen[0])


def _define_project(image: str, accelerator: AcceleratorSpec | None) -> TrainingProject:
    return TrainingProject(
        name="prefect-bt-check",
        job=TrainingJob(
            name="check",
            image=Image(base_image=image),
            compute=Compute(node_count=NODES, cpu_count=1, memory="512Mi", accelerator=accelerator),
            runtime=Runtime(
                start_commands=[_SCRIPT], checkpointing_config=CheckpointingConfig(enabled=True)
            ),
        ),
    )


def _describe_progress(status: NodeStatus) -> str:
    return status.waiting or f"rank {status.rank} is {status.phase.value}"


def _read_lines(handle: NodeHandle) -> list[str]:
    """Return the last lines of the commands; none if the log cannot be read."""
    with suppress(PrefectBtError, OSError):
        messages = [line.message for line in read_last_lines(handle, max_characters=64 * 1024)]
        return [message for message in messages if not message.startswith(PLATFORM_PREFIX)]
    return []


def _select(lines: Sequence[str], prefix: str) -> list[str]:
    return [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
