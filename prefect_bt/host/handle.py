"""A node on this machine, seen from any process: everything is read from its folder.

The lock tells whether the node lives: guard and agent hold it, nobody else can, and the kernel
lets go of it however they end. Pids are not asked.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final

from prefect_bt import codec
from prefect_bt.beneath import NotRegularFile, open_file, read_regular
from prefect_bt.contract import LEADER_PORT_VARIABLE
from prefect_bt.errors import SubstrateError
from prefect_bt.folders import find_paths
from prefect_bt.host import processes
from prefect_bt.host.files import (
    UNANSWERED,
    StopRequest,
    read_record,
    request_stop,
    write_text,
)
from prefect_bt.host.layout import JobFolder, NodeFolder, NodeRecord
from prefect_bt.host.view import mount_points
from prefect_bt.ownership import LOOK, drop_unowned, try_lock
from prefect_bt.plan import NodePlan
from prefect_bt.records import NodePhase, NodeStatus, UploadStatus
from prefect_bt.trees import find_files, remove_tree

NAME: Final = "local"
GONE = "the node's process is gone"
END_SECONDS = 15.0
LOOPBACK: Final = "127.0.0.1"
NODE_MODULE: Final = "prefect_bt.node"
"""In the command line of guard and agent, and of nothing else that carries a node's mark."""


@dataclass(frozen=True)
class HostHandle:
    """Frozen and without a process in it: two handles of one node are equal and as good."""

    substrate: ClassVar[str] = NAME

    job: JobFolder
    attempt: int
    rank: int

    @property
    def folder(self) -> NodeFolder:
        return self.job.node(self.attempt, self.rank)

    @property
    def log_file(self) -> Path:
        """For a store on the same disk, which then need not copy it."""
        return self.folder.log

    def observe(self) -> NodeStatus:
        status = self._read_status()
        if status.over or self._alive():
            return status
        # Its last word may have come between the two looks.
        status = self._read_status()
        return status if status.over else self._bury(status)

    def stop(self, *, reason: str, force: bool = False, grace: float | None = None) -> None:
        """As the protocol says. With the agent gone, `force` also ends a flush that goes on."""
        if not self.folder.path.is_dir() or self._read_status().over:
            return
        try:
            request_stop(self.folder.stop, StopRequest(reason, force, grace))
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._error(f"cannot be asked to stop: {error}") from error
        if not self._alive():
            self._kill_marked(spare_uploader=not force)

    def give_up(self) -> None:
        """Kill the agent first, and its guard with the second call, as the protocol requires."""
        before = read_record(StopRequest, self.folder.stop)
        if before is None or self._read_status().over:
            return
        with suppress(OSError):  # only the reason is lost
            request_stop(self.folder.stop, replace(before, force=True, unanswered=True))
        agents = self._agents()
        parents = {processes.parent_of(pid) for pid in agents}
        for pid in agents:
            if before.unanswered or pid not in parents:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def _agents(self) -> list[int]:
        """Return the pids of the guard and the agent, if they are alive."""
        marked = processes.marked_processes(self._mark(), self.folder.root, spare_uploader=True)
        return [pid for pid in marked if NODE_MODULE in processes.arguments_of(pid)]

    def kill_commands(self) -> bool:
        marked = processes.marked_processes(self._mark(), self.folder.root, spare_uploader=True)
        found = [pid for pid in marked if NODE_MODULE not in processes.arguments_of(pid)]
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(found)

    def server_address(self) -> str | None:
        plan = read_record(NodePlan, self.folder.plan)
        port = plan.environment.get(LEADER_PORT_VARIABLE) if plan is not None else None
        return f"{LOOPBACK}:{port}" if port else None

    def server_process(self) -> processes.ProcessIdentity | None:
        return None

    def read_log(self, *, offset: int, limit: int) -> bytes:
        try:
            # Commands beside us (local substrate) can put a pipe or a link there.
            with os.fdopen(open_file(self.folder.path, self.folder.log.name), "rb") as file:
                file.seek(offset)
                return file.read(limit)
        except (FileNotFoundError, NotRegularFile):
            return b""

    def remove(self) -> None:
        """As the protocol says. Checkpoints go with a rank's last attempt, if all are stored."""
        if self.folder.path.exists():
            self._end_everything()
            # The node's own folder last: as long as it is there, somebody finds the node.
            if not self._must_keep(self._read_status()) and self._rank.is_dir():
                delete_tree(self._rank, self._error)
            delete_tree(self.folder.path, self._error)
        self._drop_parents()

    # -- whether it lives -------------------------------------------------------------------

    def _alive(self) -> bool:
        descriptor = self._open_lock()
        if descriptor is None:
            return False
        try:
            return not try_lock(descriptor, shared=True)
        finally:
            os.close(descriptor)

    def _open_lock(self) -> int | None:
        try:
            return os.open(self.folder.lock, LOOK)
        except OSError:
            return None

    def _bury(self, status: NodeStatus) -> NodeStatus:
        """The node died without its last word. Its commands are ended; a flush may go on."""
        self._kill_marked(spare_uploader=True)
        if processes.uploader_processes(self._mark()):
            status = replace(status, phase=NodePhase.FLUSHING, reason=GONE)
        else:
            upload = read_record(UploadStatus, self.folder.upload)
            status = replace(
                status,
                phase=NodePhase.LOST,
                reason=self._why_gone(),
                ended_at=status.ended_at or time.time(),
                upload_error=upload.error if upload is not None else "",
                uncommitted=upload.uncommitted if upload is not None else (),
            )
        with suppress(OSError):
            write_text(self.folder.status, codec.dumps(status))
        return status

    def _why_gone(self) -> str:
        """A node that never got to speak has its cause on the last line of agent.log."""
        asked = read_record(StopRequest, self.folder.stop)
        if asked is not None and asked.unanswered:
            return UNANSWERED
        try:
            text = read_regular(self.folder.agent_log).decode(errors="replace")
            last = text.strip().splitlines()[-1:]
        except OSError:
            last = []
        return ": ".join([GONE, *last])

    def _read_status(self) -> NodeStatus:
        return read_record(NodeStatus, self.folder.status) or NodeStatus(self.rank)

    def _mark(self) -> str:
        record = read_record(NodeRecord, self.folder.record)
        return record.mark if record is not None else ""

    # -- ending and deleting ----------------------------------------------------------------

    def _kill_marked(self, *, spare_uploader: bool) -> bool:
        mark = self._mark()
        return processes.kill_until_gone(
            lambda: processes.marked_processes(
                mark, self.folder.root, spare_uploader=spare_uploader
            ),
            patience=END_SECONDS,
        )

    def _end_everything(self) -> None:
        if not self._kill_marked(spare_uploader=False):
            raise self._error("has processes that cannot be killed")
        deadline = time.monotonic() + END_SECONDS
        while self._alive():
            if time.monotonic() > deadline:
                raise self._error("is still held by a process")
            time.sleep(0.01)

    def may_be_unsaved(self) -> bool:
        """Whether what the rank has of checkpoints may be their only copy."""
        return self._is_unsaved(self._read_status())

    def _must_keep(self, status: NodeStatus) -> bool:
        """Whether local checkpoints may be the only copy, or another attempt needs them."""
        attempts = find_paths(self.job.path, f"attempt-*/rank-{self.rank}")
        others = any(folder != self.folder.path for folder in attempts)
        self._note_unsent(status)
        return others or self._is_unsaved(status)

    def _is_unsaved(self, status: NodeStatus) -> bool:
        ended_well = status.started_at is not None and status.exit_code == 0
        before = not ended_well and self._unsent.exists()
        return before or bool(status.uncommitted) or self._is_unsent(status)

    def _is_unsent(self, status: NodeStatus) -> bool:
        """Whether something whole may be here that this attempt did not get into the store."""
        upload = read_record(UploadStatus, self.folder.upload)
        flushed = status.phase is NodePhase.DONE or (upload is not None and upload.flushed)
        return bool(status.upload_error) or (status.started_at is not None and not flushed)

    @property
    def _unsent(self) -> Path:
        """There while an earlier attempt of the rank left what no attempt has sent since.

        An attempt that never ran knows nothing of it, and one that ran has put it aside.
        """
        return self._rank / "unsent"

    @property
    def _rank(self) -> Path:
        return self.job.rank(self.rank)

    def _note_unsent(self, status: NodeStatus) -> None:
        with suppress(OSError):
            if self._is_unsent(status):
                self._unsent.touch()
            elif status.started_at is not None and status.exit_code == 0:
                self._unsent.unlink(missing_ok=True)

    def _drop_parents(self) -> None:
        if not any(path.parent != self._rank for path in find_files(self._rank)):
            self._unsent.unlink(missing_ok=True)
        for folder in (self._rank / "checkpoints", self._rank, self.folder.path.parent):
            with suppress(OSError):
                folder.rmdir()  # only if empty
        drop_unowned(self.job.state_dir, self.job.job_id)

    def _error(self, what: str) -> SubstrateError:
        return SubstrateError(
            f"Node {self.rank} of job {self.job.job_id} (attempt {self.attempt}) {what}.",
            substrate=self.substrate,
            rank=self.rank,
            next_step=f"Look at {self.folder.path}.",
        )


def delete_tree(folder: Path, error: Callable[[str], Exception]) -> None:
    """Delete a folder of ours, never through a link or a mount. Raises `error(what)`.

    Nothing is ever mounted here in this namespace; should something be, it is left alone.
    """
    real = str(folder.parent.resolve() / folder.name)
    mounted = [place for place in mount_points() if place == real or place.startswith(f"{real}/")]
    if mounted:
        raise error(f"cannot be removed: {mounted[0]} is mounted")
    _drop_mount_points(folder / "root")
    remove_tree(folder)
    if folder.exists():
        raise error(f"cannot be removed: {folder} cannot be deleted")


def _drop_mount_points(root: Path) -> None:
    """The empty folders of a view, several at a time: each may wait for the disk's journal."""

    def drop(path: str) -> None:
        with suppress(OSError):  # whatever else it is, remove_tree sees to it
            os.rmdir(path)  # noqa: PTH106 (one a mount point, of thousands)

    with suppress(OSError), ThreadPoolExecutor(8) as threads, os.scandir(root) as found:
        list(threads.map(drop, [entry.path for entry in found]))
