"""The digests of files whose source lists no SHA-256, remembered from earlier downloads.

One line a file, appended once its content is verified: `{"id", "sha256", "size"}`. The id contains
what pins the file upstream, so a line never becomes wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.weights.sources.file_listing import SHA256, ListedFile


@lru_cache(64)
def source_id(source: str) -> str:
    """Return a name for the source that does not depend on its revision."""
    address = source.partition("@")[0] if source.startswith("hf://") else source
    return hashlib.sha256(address.encode()).hexdigest()[:32]


def file_identity(source: str, file: ListedFile) -> str:
    """Return a text that equal files share and different files do not; "" when nothing tells."""
    if file.sha256:
        return f"sha256:{file.sha256}"
    if file.git_sha1:
        return f"git:{file.git_sha1}"
    if file.version_tag and file.size is not None:
        pinned = json.dumps([source_id(source), file.path, file.size, file.version_tag])
        return f"tag:{hashlib.sha256(pinned.encode()).hexdigest()}"
    return ""


class DigestIndex:
    """The remembered digests of one source. Safe with several processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, str] | None = None

    def get(self, identity: str) -> str:
        """Return the SHA-256 of the file; "" when it is unknown."""
        if self._known is None:
            rows = read_json_lines(self._path)
            found = ((row.get("id"), str(row.get("sha256"))) for row in rows)
            self._known = {str(key): sha256 for key, sha256 in found if SHA256.fullmatch(sha256)}
        return self._known.get(identity, "")

    def invalidate(self) -> None:
        """Read the file again at the next `get`, because other processes may have added to it."""
        self._known = None

    def add(self, found: Mapping[str, tuple[str, int]]) -> None:
        """Append identity -> (sha256, size)."""
        new = {key: digest for key, (digest, _) in found.items() if self.get(key) != digest}
        if not new:
            return
        rows = ({"id": key, "sha256": sha256, "size": found[key][1]} for key, sha256 in new.items())
        # The first newline ends a line that a crash cut off.
        data = "\n" + "".join(json.dumps(row) + "\n" for row in rows)
        ensure_private_folder(self._path.parent)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o644)
        try:
            os.write(descriptor, data.encode())
        finally:
            os.close(descriptor)
        self._known = (self._known or {}) | new


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file, one a line. Skip what a crash cut off."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        with suppress(ValueError, RecursionError):
            row: Any = json.loads(line)
            if isinstance(row, dict):
                yield cast("dict[str, Any]", row)
