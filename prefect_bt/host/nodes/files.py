"""A node's small JSON files: written whole or not at all, read by any process at any time.

A reader sees the old file or the new one. Nothing is synced to disk: these files tell living
processes about each other, and what must survive a power cut is in the store.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from prefect_bt import codec
from prefect_bt.filesystem.confined import read_regular
from prefect_bt.ledger.records import NodeStatus

T = TypeVar("T")

AGENT_UNRESPONSIVE: Final = "the node's agent did not answer a stop and was killed"
"""Reason in the status of a node whose agent did not answer a stop."""


def write_text_atomic(path: Path, text: str) -> None:
    """Atomically; only the owner may read it. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def read_record(kind: type[T], path: Path) -> T | None:
    """The file as `kind`; None where there is none, or it is damaged or no regular file."""
    try:
        return codec.loads(kind, read_regular(path))
    except (OSError, ValueError, TypeError, KeyError):
        return None


@dataclass(frozen=True)
class NodeStopRequest:
    """`force` means now: SIGKILL. A forced request is never softened by a later one.

    `grace`: seconds until whoever asks will force it; None: the plan's.
    `unanswered`: the agent did not do so in time, and the requester killed it.
    """

    reason: str
    force: bool = False
    grace: float | None = None
    unanswered: bool = False


def write_stop_request(path: Path, request: NodeStopRequest) -> None:
    """Leave the request where the agent looks ten times a second."""
    before = read_record(NodeStopRequest, path)
    if before is not None and before.force and not request.unanswered:
        return
    write_text_atomic(path, codec.dumps(request))


class StatusFile:
    """The one writer of a node's status.json. A full disk only delays a word."""

    def __init__(self, path: Path, status: NodeStatus) -> None:
        self.path, self.status = path, status
        self._pending = True

    def update(self, **changes: Any) -> None:
        """New values of NodeStatus's fields; written at once, or with the next `save`."""
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
        """As save, again and again for `timeout` seconds: the last word decides the outcome."""
        deadline = time.monotonic() + timeout
        while not self.save() and time.monotonic() < deadline:
            time.sleep(0.5)


def read_secrets(descriptor: int) -> dict[str, str]:
    """Everything up to the end of the pipe; ValueError when the launcher died on the way."""
    chunks: list[bytes] = []
    while chunk := os.read(descriptor, 65536):
        chunks.append(chunk)
    return dict(json.loads(b"".join(chunks)))


def free_disk_bytes(folder: Path) -> int:
    """Bytes, where the folder is or would be made."""
    for place in (folder, *folder.parents):
        if place.exists():
            return shutil.disk_usage(place).free
    return 0
