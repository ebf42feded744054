"""Which content a source's file had, for files whose source tells no sha256.

A line a file, appended when its content was verified: `{"id", "sha256", "size"}`. What pins the
file upstream (path, size, ETag or time) is in the id, so a line is never wrong, only of no use any
more. A line that was cut off by a crash, or that names no digest, is skipped.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.weights.sources.file_listing import SHA256, ListedFile


@lru_cache(64)
def source_id(source: str) -> str:
    """A name for where a source's files lie, whatever the revision."""
    address = source.partition("@")[0] if source.startswith("hf://") else source
    return hashlib.sha256(address.encode()).hexdigest()[:32]


def file_identity(source: str, file: ListedFile) -> str:
    """What two files must share to be the same file; "" when nothing tells."""
    if file.sha256:
        return f"sha256:{file.sha256}"
    if file.git_sha1:
        return f"git:{file.git_sha1}"
    if file.version_tag and file.size is not None:
        seen = json.dumps([source_id(source), file.path, file.size, file.version_tag])
        return f"tag:{hashlib.sha256(seen.encode()).hexdigest()}"
    return ""


class DigestIndex:
    """One place's lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, str] | None = None

    def get(self, key: str) -> str:
        """The sha256 of the file with that identity; "" when it was never here."""
        if self._known is None:
            self._known = self._read()
        return self._known.get(key, "")

    def invalidate(self) -> None:
        """Others may have added to it."""
        self._known = None

    def add(self, found: Mapping[str, tuple[str, int]]) -> None:
        """`found`: identity -> (sha256, size). Safe from several processes."""
        news = {key: facts for key, facts in found.items() if self.get(key) != facts[0]}
        lines = "".join(
            json.dumps({"id": key, "sha256": sha256, "size": size}) + "\n"
            for key, (sha256, size) in news.items()
        )
        if not lines:
            return
        ensure_private_folder(self._path.parent)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o644)
        try:
            # A line of its own, whatever a crash has left at the end.
            os.write(descriptor, b"\n" + lines.encode())
        finally:
            os.close(descriptor)
        if self._known is not None:
            self._known.update((key, sha256) for key, (sha256, _) in news.items())

    def _read(self) -> dict[str, str]:
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return {}
        return dict(_parse(lines))


def _parse(lines: Iterable[bytes]) -> Iterable[tuple[str, str]]:
    for line in lines:
        try:
            found: Any = json.loads(line)
            key, sha256 = str(found["id"]), str(found["sha256"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if SHA256.fullmatch(sha256):
            yield key, sha256
