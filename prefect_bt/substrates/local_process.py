"""Nodes as processes of this machine, with no server between: state is folders, locks and marks.

The folders are drawn in prefect_bt.host.layout, the processes in prefect_bt.node. What is launched
is written down first (node.json, under a lock that the node inherits), so that any process can
find, observe and end it, whatever was killed in between.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Final

from prefect_bt import codec
from prefect_bt.contract import SECRET_PREFIX
from prefect_bt.errors import SubstrateError
from prefect_bt.host.files import write_text
from prefect_bt.host.layout import JobFolder, NodeFolder, NodeRecord, new_mark
from prefect_bt.host.ports import NoFreePort
from prefect_bt.host.processes import FLOW_VARIABLE, MARK_VARIABLE, UPLOADER_VARIABLE
from prefect_bt.plan import NodePlan
from prefect_bt.substrates.local_handle import NAME, LocalHandle
from prefect_bt.substrates.local_machine import measure_capacity, probe_view
from prefect_bt.substrates.local_ports import GangPorts
from prefect_bt.substrates.protocol import Capacity

LEADER: Final = "127.0.0.1"


class LocalSubstrate:
    """Runs nodes beside us. `state_dir` is on a local disk (Settings.state_dir).

    `orphan_deadline`: seconds a node goes on while nobody holds its job (ownership.hold_job); None
    for ever, and of no matter to whoever only looks at nodes. `map_paths` refuses private views.
    `uploader` replaces the uploader's argv, for tests.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        orphan_deadline: float | None = None,
        map_paths: bool = False,
        uploader: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.state_dir = Path(state_dir).expanduser().resolve()
        self.orphan_deadline, self.map_paths = orphan_deadline, map_paths
        self.uploader = tuple(uploader)
        self._ports = GangPorts(LEADER)
        self._environment = os.environ if environment is None else environment

    @property
    def name(self) -> str:
        return NAME

    def capacity(self) -> Capacity:
        return measure_capacity(
            self.state_dir, environment=self._environment, why_mapped=self._why_mapped
        )

    def leader_address(self, job_id: str, attempt: int) -> str:
        return LEADER

    def launch(self, node: NodePlan, *, secrets: Mapping[str, str]) -> LocalHandle:
        """Start the node and return at once; SubstrateError leaves nothing behind."""
        handle = LocalHandle(JobFolder(self.state_dir, node.job_id), node.attempt, node.rank)
        try:
            told = self._ports.variables(node, handle.job)
            node = replace(node, environment={**told, **node.environment})
            lock = self._write_down(node, handle.folder)
        except OSError as error:
            self._ports.drop(node)
            raise _launch_error(node, error) from error
        try:
            self._start(handle.folder, (lock, *self._ports.held(node)), secrets)
        except (OSError, ValueError) as error:
            os.close(lock)
            self._ports.drop(node)
            handle.remove()
            raise _launch_error(node, error) from error
        os.close(lock)
        self._ports.launched(node)
        return handle

    def find(self, job_id: str) -> Sequence[LocalHandle]:
        job = JobFolder(self.state_dir, job_id)
        found: list[LocalHandle] = []
        for folder in job.path.glob("attempt-*/rank-*"):
            numbers = re.fullmatch(r"attempt-(\d+)/rank-(\d+)", str(folder.relative_to(job.path)))
            if numbers:
                found.append(LocalHandle(job, int(numbers[1]), int(numbers[2])))
        return sorted(found, key=lambda handle: (handle.attempt, handle.rank))

    @cached_property
    def _why_mapped(self) -> str:
        return "as asked" if self.map_paths else probe_view(self._agent_environment(""))

    def _write_down(self, node: NodePlan, folder: NodeFolder) -> int:
        """The node's folder with what it is about to be; the descriptor that holds its lock."""
        folder.path.parent.mkdir(parents=True, exist_ok=True)
        folder.path.mkdir()  # FileExistsError: this attempt of the rank was launched before
        lock = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            record = NodeRecord(
                job_id=node.job_id,
                attempt=node.attempt,
                rank=node.rank,
                mark=new_mark(
                    self.state_dir, job_id=node.job_id, attempt=node.attempt, rank=node.rank
                ),
                state_dir=str(self.state_dir),
                orphan_deadline=self.orphan_deadline,
                map_paths=self.map_paths,
                uploader=self.uploader,
            )
            write_text(folder.plan, codec.dumps(node))
            write_text(folder.record, codec.dumps(record))
        except BaseException:
            os.close(lock)
            LocalHandle(JobFolder(self.state_dir, node.job_id), node.attempt, node.rank).remove()
            raise
        return lock

    def _start(self, folder: NodeFolder, held: tuple[int, ...], secrets: Mapping[str, str]) -> None:
        mark = codec.loads(NodeRecord, folder.record.read_bytes()).mark
        values = json.dumps(dict(secrets)).encode()
        with folder.agent_log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "prefect_bt.node", str(folder.path), *map(str, held)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=self._agent_environment(mark),
                cwd="/",
                pass_fds=held,
                start_new_session=True,
            )
        # Whoever launched it is its parent and has to wait for it, or it stays as a zombie.
        threading.Thread(target=process.wait, daemon=True, name=f"reap-{mark}").start()
        assert process.stdin is not None
        try:
            process.stdin.write(values)
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()

    def _agent_environment(self, mark: str) -> dict[str, str]:
        """Ours, for the store's credentials, without other jobs' secrets."""
        environment = {
            name: value
            for name, value in self._environment.items()
            if not name.startswith(SECRET_PREFIX) and name not in {UPLOADER_VARIABLE, FLOW_VARIABLE}
        }
        package = str(Path(__file__).resolve().parents[2])
        known = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([package, *known]))
        return {**environment, MARK_VARIABLE: mark}


def make_substrate(
    state_dir: Path, *, orphan_deadline: float | None, map_paths: bool = False
) -> LocalSubstrate:
    """For the table of substrates; see LocalSubstrate."""
    return LocalSubstrate(state_dir, orphan_deadline=orphan_deadline, map_paths=map_paths)


def _launch_error(node: NodePlan, error: Exception) -> SubstrateError:
    if isinstance(error, FileExistsError):
        what, step = "was launched before", "Give the next attempt a new number."
    elif isinstance(error, NoFreePort):
        what, step = f"could not be launched: {error}", "End what listens there, or other gangs."
    else:
        what, step = f"could not be launched: {error}", "See that PREFECT_BT_STATE_DIR is writable."
    return SubstrateError(
        f"Node {node.rank} of job {node.job_id}, attempt {node.attempt}, {what}.",
        substrate=NAME,
        rank=node.rank,
        next_step=step,
    )
