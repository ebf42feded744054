"""Small JSON files of a node: replaced in one step, read by any process at any time.

A reader sees the old file or the new one. Nothing is synced to disk: the files inform living
processes, and facts that must survive a power failure are in the store.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from prefect_bt import codec
from prefect_bt.filesystem.confined import read_regular
from prefect_bt.host.state_folder import NodeFolder, NodeRecord
from prefect_bt.ledger.records import NodePhase, NodeStatus, UploadStatus
from prefect_bt.ledger.requests import StopRequest
from prefect_bt.planning.plan import NodePlan

T = TypeVar("T")

AGENT_UNRESPONSIVE: Final = "the node's agent did not answer a stop and was killed"
"""Reason in the status of a node whose agent did not react to a stop."""


def write_text_atomic(path: Path, text: str) -> None:
    """Replace the file in one step, readable by the owner only. Raise OSError."""
    # Several threads of a flow may find the same node lost.
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def read_record(kind: type[T], path: Path) -> T | None:
    """Return the file as `kind`; None if it is missing, damaged, or not a regular file."""
    try:
        return codec.loads(kind, read_regular(path))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_stop_request(path: Path, request: StopRequest) -> None:
    """Write the request to the file that the agent checks ten times a second."""
    before = read_record(StopRequest, path)
    if before is not None and before.force and not request.unanswered:
        return
    write_text_atomic(path, codec.dumps(request))


class StatusFile:
    """Writer of a node's status.json, the only one. A full disk only delays an update."""

    def __init__(self, path: Path, status: NodeStatus) -> None:
        self.path, self.status = path, status
        self._pending = True

    def update(self, **changes: Any) -> None:
        """Set fields of NodeStatus, and write them now or with the next `save`."""
        self.status = replace(self.status, **changes)
        self._pending = True
        self.save()

    def save(self) -> bool:
        """Write what is not written yet; False when that failed."""
        if self._pending:
            try:
                write_text_atomic(self.path, codec.dumps(self.status))
            except OSError:
                return False
            self._pending = False
        return True

    def save_with_retry(self, *, timeout: float = 60.0) -> None:
        """Save the status; retry errors for `timeout` seconds: it decides the outcome."""
        deadline = time.monotonic() + timeout
        while not self.save() and time.monotonic() < deadline:
            time.sleep(0.5)


def lost_status(folder: NodeFolder, status: NodeStatus, reason: str) -> NodeStatus:
    """Return the final status of a node without one, with the last report of its uploader.

    A node whose commands had succeeded is not lost: at most its final flush did not end.
    """
    status = replace(status, ended_at=status.ended_at or time.time(), **read_upload_end(folder))
    if status.exit_code != 0:
        return replace(status, phase=NodePhase.LOST, reason=reason)
    plan, upload = read_record(NodePlan, folder.plan), _read_upload(folder)
    if not upload.flushed and plan is not None and plan.checkpoints is not None:
        status = replace(status, upload_error=f"{reason} before its final flush ended")
    return replace(status, phase=NodePhase.DONE)


def read_upload_end(folder: NodeFolder) -> dict[str, Any]:
    """Return the fields of NodeStatus that the last report of its uploader determines."""
    upload, record = _read_upload(folder), read_record(NodeRecord, folder.record)
    in_pod = record is not None and record.in_pod
    return {
        "upload_error": upload.error,
        "uncommitted": upload.uncommitted,
        "kept_in": "" if in_pod else f"{os.uname().nodename}:{folder.checkpoints}",
    }


def _read_upload(folder: NodeFolder) -> UploadStatus:
    return read_record(UploadStatus, folder.upload_status) or UploadStatus(0.0)


def read_secrets(descriptor: int) -> dict[str, str]:
    """Read the pipe to its end; ValueError if the launcher died before it wrote everything."""
    chunks: list[bytes] = []
    while chunk := os.read(descriptor, 65536):
        chunks.append(chunk)
    return dict(json.loads(b"".join(chunks)))


def free_disk_bytes(folder: Path) -> int:
    """Return the free bytes of the disk on which the folder is or would be created."""
    for place in (folder, *folder.parents):
        if place.exists():
            return shutil.disk_usage(place).free
    return 0
