"""Start a node's guard and agent on this machine, with commands in a process or a container.

What is launched is written down first (node.json, under a lock that the node inherits), so that any
process can find, observe and end it, whatever was killed in between.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from prefect_bt import codec
from prefect_bt.errors import SubstrateError
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.permissions import PRIVATE_MODE, ensure_private_folder
from prefect_bt.host.nodes.files import write_text_atomic
from prefect_bt.host.processes import FLOW_VARIABLE, MARK_VARIABLE, UPLOADER_VARIABLE
from prefect_bt.host.state_folder import JobFolder, NodeFolder, NodeRecord, make_mark
from prefect_bt.planning.plan import GangPlan, NodePlan
from prefect_bt.reserved_variables import SECRET_PREFIX


class RemovableNode(Protocol):
    """A launched node that can be removed."""

    def stop(self, *, reason: str, force: bool = False) -> None: ...
    def remove(self) -> None: ...


HandleT = TypeVar("HandleT", bound=RemovableNode)


def launch_nodes(
    gang: GangPlan, launch: Callable[..., HandleT], *, secrets: Mapping[str, str]
) -> list[HandleT]:
    """Call `launch(node, secrets=…)` for each node; if one fails, remove those before and raise."""
    launched: list[HandleT] = []
    try:
        for node in gang.nodes:
            needed = {name: secrets[name] for name in set(node.secret_environment.values())}
            launched.append(launch(node, secrets=needed))
    except BaseException as error:
        _roll_back(launched, error)
        raise
    return launched


def _roll_back(launched: Sequence[RemovableNode], error: BaseException) -> None:
    for handle in launched:
        try:
            handle.stop(reason="another node could not be launched", force=True)
            handle.remove()
        except SubstrateError as also:
            error.add_note(str(also))


class NodeLauncher:
    """`state_dir` is on a local disk; the other arguments are those of NodeRecord.

    `environment`: of this process, by default.
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
        self.state_dir = Path(state_dir).expanduser().resolve()
        self.orphan_deadline, self.map_paths = orphan_deadline, map_paths
        self.uploader, self.python = tuple(uploader), python
        self.environment = os.environ if environment is None else environment

    def create_node_folder(
        self, node: NodePlan, *, contained: bool = False, mounts: Sequence[tuple[str, str]] = ()
    ) -> int:
        """Create the node's folder with its record; return the descriptor that holds its lock.

        `contained`, `mounts`: as in NodeRecord. OSError leaves the folder behind; FileExistsError:
        this attempt of the rank was launched before.
        """
        folder = JobFolder(self.state_dir, node.job_id).node_folder(node.attempt, node.rank)
        ensure_private_folder(folder.path.parent)
        folder.path.mkdir(PRIVATE_MODE)
        lock = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            write_text_atomic(folder.plan, codec.dumps(node))
            record = replace(self._record(node), contained=contained, mounts=tuple(mounts))
            write_text_atomic(folder.record, codec.dumps(record))
        except BaseException:
            os.close(lock)
            raise
        return lock

    def start(self, folder: NodeFolder, inherited_descriptors: tuple[int, ...]) -> LaunchedProcess:
        """Start guard and agent of a recorded node; they wait for its secrets. OSError.

        `inherited_descriptors`: descriptors that they inherit, the lock first.
        """
        record = codec.loads(NodeRecord, folder.record.read_bytes())
        with folder.agent_log.open("ab") as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "prefect_bt.node_agent",
                    str(folder.path),
                    *map(str, inherited_descriptors),
                ],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=self.agent_environment(record.mark),
                cwd="/",
                pass_fds=inherited_descriptors,
                start_new_session=True,
            )
        # Whoever launched it is its parent and has to wait for it, or it stays as a zombie.
        threading.Thread(target=process.wait, daemon=True, name=f"reap-{record.mark}").start()
        return LaunchedProcess(process)

    def agent_environment(self, mark: str) -> dict[str, str]:
        """Return this environment, for the store's credentials, without secrets of other jobs."""
        environment = {
            name: value
            for name, value in self.environment.items()
            if not name.startswith(SECRET_PREFIX) and name not in {UPLOADER_VARIABLE, FLOW_VARIABLE}
        }
        package = str(Path(__file__).resolve().parents[3])
        known = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([package, *known]))
        return {**environment, MARK_VARIABLE: mark}

    def _record(self, node: NodePlan) -> NodeRecord:
        mark = make_mark(self.state_dir, job_id=node.job_id, attempt=node.attempt, rank=node.rank)
        return NodeRecord(
            job_id=node.job_id,
            attempt=node.attempt,
            rank=node.rank,
            mark=mark,
            state_dir=str(self.state_dir),
            orphan_deadline=self.orphan_deadline,
            map_paths=self.map_paths,
            uploader=self.uploader,
            python=self.python,
        )


class LaunchedProcess:
    """First process of a node. It exits if it gets no secrets."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def send_secrets(self, secrets: Mapping[str, str]) -> None:
        """Send the values by reference name. Raise OSError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(dict(secrets)).encode())
        finally:
            self.close()

    def close(self) -> None:
        """Close the pipe of the secrets. Idempotent."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()


def iter_nodes(job: JobFolder) -> Iterator[tuple[int, int]]:
    """Yield (attempt, rank) of every node that has a folder here, in order."""
    found: list[tuple[int, int]] = []
    for folder in find_paths(job.path, "attempt-*/rank-*"):
        attempt, _, rank = str(folder.relative_to(job.path)).partition("/")
        numbers = attempt.removeprefix("attempt-"), rank.removeprefix("rank-")
        if all(number.isdigit() for number in numbers):
            found.append((int(numbers[0]), int(numbers[1])))
    yield from sorted(found)
