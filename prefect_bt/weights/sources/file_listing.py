"""The files that a source lists at one revision, and the comparison of bytes with them."""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

SHA256: Final = re.compile(r"[0-9a-f]{64}")
"""Matched in full, because digests become paths and object keys."""
_BOOKKEEPING: Final = re.compile(
    r"(.*/)?(\.cache/huggingface|\.huggingface|\.git|\._____temp)(/.*)?|(.*/)?\.(msc|mv|mdl)",
    re.DOTALL,
)
"""Paths of the Hugging Face Hub's client, git and ModelScope in a folder that they filled."""
_REPR: Final = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80
_MAX_NAME_BYTES: Final = 255
_MAX_PATH_BYTES: Final = 2048
"""Half of Linux' limit, which leaves room for the folders above."""
_MAX_DEPTH: Final = 200
"""Folders of a path. Programs that walk folders recursively fail on deeper ones."""


@dataclass(frozen=True)
class ListedFile:
    """`path` is relative to the mount. Facts that the source does not list are None or empty."""

    path: str
    size: int | None = None
    sha256: str = ""
    git_sha1: str = ""
    """Id of git's blob object: SHA-1 of a header with the length, then the bytes."""
    version_tag: str = ""
    """ETag, version or modification time. Another tag means another file."""
    sequential_only: bool = False
    """The server supports no ranges, so the file is read from the beginning to the end."""

    @property
    def is_pinned(self) -> bool:
        """Return whether another content would have other facts."""
        has_version = self.sha256 or self.git_sha1 or self.version_tag
        return self.size is not None and bool(has_version)


@dataclass(frozen=True)
class Listing:
    """The files of a source at one revision."""

    revision: str
    files: tuple[ListedFile, ...]


def quote(found: object) -> str:
    """Return text from a server as a message shows it: short, without control characters."""
    return _REPR.repr(found)


def is_bookkeeping(path: str) -> bool:
    """Return whether the program that downloaded a folder keeps its own state at this path.

    >>> is_bookkeeping(".cache/huggingface/download/config.json.metadata")
    True
    """
    return bool(_BOOKKEEPING.fullmatch(path))


def is_mountable(path: str) -> bool:
    """Return whether a file below the mount and a manifest, which is UTF-8, can have this path."""
    parts = path.split("/")
    try:
        longest, whole = max(len(part.encode()) for part in parts), len(path.encode())
    except UnicodeEncodeError:
        return False
    fits = longest <= _MAX_NAME_BYTES and whole <= _MAX_PATH_BYTES and len(parts) <= _MAX_DEPTH
    return fits and "\0" not in path and not {"", ".", ".."}.intersection(parts)


def compute_revision(files: Iterable[ListedFile]) -> str:
    """Return a revision for a source that has none: a digest of its listing."""
    seen = sorted((file.path, file.size, file.sha256, file.version_tag) for file in files)
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:40]


def create_digests(file: ListedFile, size: int) -> dict[str, Any]:
    """Return hashlib objects by name: sha256, and the digest that the source lists instead."""
    digests: dict[str, Any] = {"sha256": hashlib.sha256()}
    if file.git_sha1 and not file.sha256:
        head = b"blob %d\0" % size
        digests["git_sha1"] = hashlib.sha1(head, usedforsecurity=False)
    return digests


def describe_mismatch(file: ListedFile, size: int, found: Mapping[str, str]) -> str:
    """Return why `size` bytes with these digests are not the listed file; "" when they are."""
    if file.size is not None and size != file.size:
        return f"it has {size} bytes, not {file.size}"
    for name, digest in found.items():
        listed = getattr(file, name)
        if listed and digest != listed:
            return f"its {name.replace('_', ' ')} is {digest}, not {listed}"
    return ""
