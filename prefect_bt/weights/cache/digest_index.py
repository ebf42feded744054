"""The digests of files whose source lists no SHA-256, remembered from earlier downloads.

A line `{"id", "sha256"}` is appended once a file is verified. The id contains the file's version at
the source, so a line never becomes wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path

from prefect_bt.filesystem.permissions import ensure_private_folder
from prefect_bt.weights.sources.file_listing import SHA256, ListedFile


@lru_cache(64)
def source_id(source: str) -> str:
    """Return a name for the source that does not depend on its revision."""
    address = source.partition("@")[0] if source.startswith("hf://") else source
    return hashlib.sha256(address.encode()).hexdigest()[:32]


def file_identity(source: str, file: ListedFile) -> str:
    """Return a text that only files with equal content share; "" when the source lists none."""
    if file.sha256:
        return f"sha256:{file.sha256}"
    if file.git_sha1:
        return f"git:{file.git_sha1}"
    if file.version_tag and file.size is not None:
        pinned = json.dumps([source_id(source), file.path, file.size, file.version_tag])
        return f"tag:{hashlib.sha256(pinned.encode()).hexdigest()}"
    return ""


class DigestIndex:
    """The remembered digests of one source or tree. Safe with several processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.reload()

    def reload(self) -> None:
        """Read the file, to which other processes may have added."""
        found: dict[str, str] = {}
        with suppress(FileNotFoundError):
            for line in self._path.read_bytes().splitlines():
                # A line may be cut off by a crash.
                with suppress(ValueError, TypeError, KeyError, RecursionError):
                    row = json.loads(line)
                    if SHA256.fullmatch(row["sha256"]):
                        found[str(row["id"])] = row["sha256"]
        self._known = found

    def __len__(self) -> int:
        return len(self._known)

    def get(self, identity: str) -> str:
        """Return the SHA-256 of the file; "" when it is unknown."""
        return self._known.get(identity, "")

    def add(self, found: Mapping[str, str]) -> None:
        """Append identity -> sha256."""
        new = {key: sha256 for key, sha256 in found.items() if self.get(key) != sha256}
        if not new:
            return
        rows = (json.dumps({"id": key, "sha256": sha256}) for key, sha256 in new.items())
        # One write for all lines. The first newline ends a line that a crash cut off.
        os.write(self._descriptor, "\n".join(("", *rows, "")).encode())
        self._known.update(new)

    @cached_property
    def _descriptor(self) -> int:
        """A descriptor that appends, and that is closed with this object."""
        ensure_private_folder(self._path.parent)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        weakref.finalize(self, os.close, descriptor)
        return descriptor
