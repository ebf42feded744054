"""Handle of a node on this machine in any process: everything is read from the node's folder.

The lock tells whether the node lives: guard and agent hold it, and the kernel releases it however
they end. Pids are not compared.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO, ClassVar, Final

from prefect_bt import codec
from prefect_bt.errors import SubstrateError
from prefect_bt.filesystem.confined import NotRegularFile, open_file, read_regular
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.trees import find_files, remove_tree
from prefect_bt.host import processes
from prefect_bt.host.job_lock import is_free, remove_unowned_lock
from prefect_bt.host.mounts.namespace import list_mount_points
from prefect_bt.host.nodes.files import (
    AGENT_UNRESPONSIVE,
    lost_status,
    read_record,
    write_stop_request,
    write_text_atomic,
)
from prefect_bt.host.state_folder import JobFolder, NodeFolder, NodeRecord
from prefect_bt.ledger.records import NodePhase, NodeStatus, UploadStatus
from prefect_bt.ledger.requests import StopRequest
from prefect_bt.planning.plan import NodePlan
from prefect_bt.reserved_variables import LEADER_PORT_VARIABLE

SUBSTRATE_NAME: Final = "local"
NODE_GONE = "the node's process is gone"
KILL_TIMEOUT = 15.0
LAUNCH_TIMEOUT = 2.0
"""Seconds from the creation of a node's folder until its launcher has recorded the node."""
LOOPBACK: Final = "127.0.0.1"
UNUPLOADED_MARKER: Final = "unsent"
"""File in a rank's folder while checkpoints of an earlier attempt are not uploaded."""
_NODE_MODULE: Final = "prefect_bt.node_agent"
"""Part of the command lines of guard and agent only."""


@dataclass(frozen=True)
class HostHandle:
    """Handle of one node. It holds no process, so that all handles of a node are equal."""

    substrate: ClassVar[str] = SUBSTRATE_NAME

    job: JobFolder
    attempt: int
    rank: int

    @property
    def folder(self) -> NodeFolder:
        return self.job.node_folder(self.attempt, self.rank)

    @property
    def log_file(self) -> Path:
        """Return the path of the log, which a store on the same disk links instead of copying."""
        return self.folder.log

    def observe(self) -> NodeStatus:
        deadline = time.monotonic() + LAUNCH_TIMEOUT
        while True:
            # The launcher writes the record after it has taken the lock.
            was_launched, status = self.folder.record.exists(), self._read_status()
            if status.is_over or self._is_alive():
                return status
            if was_launched or not self.folder.path.exists() or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        # The final status may have been written between the two reads.
        status = self._read_status()
        return status if status.is_over else self._mark_lost(status)

    def stop(self, *, reason: str, force: bool = False, grace: float | None = None) -> None:
        """Stop the node. If the agent is gone, `force` also ends a running flush."""
        if not self.folder.path.is_dir() or self._read_status().is_over:
            return
        try:
            write_stop_request(
                self.folder.stop_request, StopRequest(reason=reason, force=force, grace=grace)
            )
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._error(f"cannot be asked to stop: {error}") from error
        if not self._is_alive():
            self._kill_processes(keep_uploader=not force)

    def kill_unresponsive(self) -> None:
        """Kill the agent first, and its guard with the second call, as the protocol requires."""
        before = read_record(StopRequest, self.folder.stop_request)
        if before is None or self._read_status().is_over:
            return
        with suppress(OSError):  # only the reason is lost
            write_stop_request(
                self.folder.stop_request, replace(before, force=True, unanswered=True)
            )
        agents = [pid for pid in self._marked_processes() if is_node_process(pid)]
        parents = {processes.read_parent(pid) for pid in agents}
        for pid in agents:
            if before.unanswered or pid not in parents:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def kill_commands(self) -> bool:
        found = [pid for pid in self._marked_processes() if not is_node_process(pid)]
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

    def log_size(self) -> int:
        with self._open_file(self.folder.log) as file:
            return file.seek(0, os.SEEK_END)

    def read_log(self, *, offset: int, limit: int) -> bytes:
        with self._open_file(self.folder.log) as file:
            file.seek(offset)
            return file.read(limit)

    def read_metrics(self, *, offset: int, limit: int) -> bytes:
        with self._open_file(self.folder.metrics) as file:
            file.seek(offset)
            return file.read(limit)

    def _open_file(self, path: Path) -> IO[bytes]:
        """Open a file of the node; an empty one if there is none.

        Commands can replace it by a pipe or a link.
        """
        try:
            return os.fdopen(open_file(self.folder.path, path.name), "rb")
        except (FileNotFoundError, NotRegularFile):
            return BytesIO()

    def remove(self) -> None:
        """Remove the node; checkpoints go with a rank's last attempt, if all are in the store."""
        if self.folder.path.exists():
            self._kill_all()
            # The node's own folder last: while it exists, a later removal finds the node.
            if not self._must_keep() and self._rank_folder.is_dir():
                delete_tree(self._rank_folder, self._error)
            delete_tree(self.folder.path, self._error)
        self._remove_empty_parents()

    # -- whether it lives -------------------------------------------------------------------

    def _is_alive(self) -> bool:
        return not is_free(self.folder.lock)

    def _mark_lost(self, status: NodeStatus) -> NodeStatus:
        """Set a node that died without a final status to LOST, and end its commands."""
        self._kill_processes(keep_uploader=True)
        if processes.find_uploader_processes(self._read_mark()):
            reason = status.reason if status.exit_code == 0 else NODE_GONE
            status = replace(status, phase=NodePhase.FLUSHING, reason=reason)
        else:
            status = lost_status(self.folder, status, self._loss_reason())
        with suppress(OSError):
            write_text_atomic(self.folder.status, codec.dumps(status))
        return status

    def _loss_reason(self) -> str:
        """Return the reason of a loss; without any status, the last line of agent.log."""
        asked = read_record(StopRequest, self.folder.stop_request)
        if asked is not None and asked.unanswered:
            return AGENT_UNRESPONSIVE
        try:
            text = read_regular(self.folder.agent_log).decode(errors="replace")
            last = text.strip().splitlines()[-1:]
        except OSError:
            last = []
        return ": ".join([NODE_GONE, *last])

    def _read_status(self) -> NodeStatus:
        return read_record(NodeStatus, self.folder.status) or NodeStatus(self.rank)

    def _read_mark(self) -> str:
        record = read_record(NodeRecord, self.folder.record)
        return record.mark if record is not None else ""

    # -- ending and deleting ----------------------------------------------------------------

    def _kill_processes(self, *, keep_uploader: bool) -> bool:
        mark, root = self._read_mark(), self.folder.root  # once: the files may vanish meanwhile
        find = partial(processes.find_marked_processes, exclude_uploader=keep_uploader)
        return processes.kill_until_gone(lambda: find(mark, root), timeout=KILL_TIMEOUT)

    def _marked_processes(self) -> list[int]:
        mark, root = self._read_mark(), self.folder.root
        return processes.find_marked_processes(mark, root, exclude_uploader=True)

    def _kill_all(self) -> None:
        if not self._kill_processes(keep_uploader=False):
            raise self._error("has processes that cannot be killed")
        deadline = time.monotonic() + KILL_TIMEOUT
        while self._is_alive():
            if time.monotonic() > deadline:
                raise self._error("is still held by a process")
            time.sleep(0.01)

    def has_unsaved_checkpoints(self) -> bool:
        """Return whether the rank's local checkpoints may be the only copy."""
        status = self._read_status()
        ended_well = status.started_at is not None and status.exit_code == 0
        before = not ended_well and self._unuploaded_marker.exists()
        return before or bool(status.uncommitted) or self._has_unuploaded(status)

    def _must_keep(self) -> bool:
        """Return whether local checkpoints may be the only copy, or another attempt needs them."""
        attempts = find_paths(self.job.path, f"attempt-*/rank-{self.rank}")
        others = any(folder != self.folder.path for folder in attempts)
        self._update_unuploaded_marker(self._read_status())
        return others or self.has_unsaved_checkpoints()

    def _has_unuploaded(self, status: NodeStatus) -> bool:
        """Return whether a complete checkpoint may be here that this attempt did not upload."""
        upload = read_record(UploadStatus, self.folder.upload_status)
        flushed = status.phase is NodePhase.DONE or (upload is not None and upload.flushed)
        return bool(status.upload_error) or (status.started_at is not None and not flushed)

    @property
    def _unuploaded_marker(self) -> Path:
        """Return the marker that exists while checkpoints of an earlier attempt are not uploaded.

        An attempt that never ran does not know of them, and an attempt that ran has moved them
        away.
        """
        return self._rank_folder / UNUPLOADED_MARKER

    @property
    def _rank_folder(self) -> Path:
        return self.job.rank_folder(self.rank)

    def _update_unuploaded_marker(self, status: NodeStatus) -> None:
        with suppress(OSError):
            if self._has_unuploaded(status):
                self._unuploaded_marker.touch()
            elif status.started_at is not None and status.exit_code == 0:
                self._unuploaded_marker.unlink(missing_ok=True)

    def _remove_empty_parents(self) -> None:
        if not any(path.parent != self._rank_folder for path in find_files(self._rank_folder)):
            self._unuploaded_marker.unlink(missing_ok=True)
        for folder in (
            self._rank_folder / "checkpoints",
            self._rank_folder,
            self.folder.path.parent,
        ):
            with suppress(OSError):
                folder.rmdir()  # only if empty
        remove_unowned_lock(self.job.state_dir, self.job.job_id)

    def _error(self, operation: str) -> SubstrateError:
        return SubstrateError(
            f"Node {self.rank} of job {self.job.job_id} (attempt {self.attempt}) {operation}.",
            substrate=self.substrate,
            rank=self.rank,
            next_step=f"Look at {self.folder.path}.",
        )


def delete_tree(folder: Path, error: Callable[[str], Exception]) -> None:
    """Delete a folder of this package, never through a link or a mount.

    Raise `error(what)` if the folder cannot be deleted, or if this process sees a mount in it. The
    mounts of a node's view are in the node's own namespace, so this process does not see them.
    """
    real = str(folder.parent.resolve() / folder.name)
    mounted = [
        place for place in list_mount_points() if place == real or place.startswith(f"{real}/")
    ]
    if mounted:
        raise error(f"cannot be removed: {mounted[0]} is mounted")
    _remove_mount_points(folder / "root")
    remove_tree(folder)
    if folder.exists():
        raise error(f"cannot be removed: {folder} cannot be deleted")


def _remove_mount_points(root: Path) -> None:
    """Remove the empty folders of a view, several at once: each may wait for the disk's journal."""

    def drop(path: str) -> None:
        with suppress(OSError):  # remove_tree deletes any other entry
            os.rmdir(path)  # noqa: PTH106 (one a mount point, of thousands)

    with suppress(OSError), ThreadPoolExecutor(8) as threads, os.scandir(root) as found:
        list(threads.map(drop, [entry.path for entry in found]))


def is_node_process(pid: int) -> bool:
    """Return whether it is a guard or an agent."""
    return _NODE_MODULE in processes.read_command_line(pid)
