"""What a source holds at one revision, and whether bytes on disk are what it said."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from prefect_bt.errors import WeightsError

READ_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class ListedFile:
    """`path` is relative to the mount. What the source does not tell is None or empty."""

    path: str
    size: int | None = None
    sha256: str = ""
    git_sha1: str = ""
    """Of git's blob object: a header with the length, then the bytes."""


@dataclass(frozen=True)
class Listing:
    """A source at one revision, which never changes."""

    source: str
    revision: str
    files: tuple[ListedFile, ...]


def check_names(source: str, paths: Iterable[str]) -> None:
    """WeightsError for a name that would lead out of the mount, or that no file can have."""
    for path in paths:
        pure = PurePosixPath(path)
        unsafe = not path or pure.is_absolute() or ".." in pure.parts or str(pure) != path
        if unsafe or "\0" in path or path.startswith(".cache/huggingface/"):
            raise WeightsError(
                f"{source} lists a file named {path!r}, which could not lie below the mount.",
                source=source,
                next_step="Nothing was fetched. Leave the file out with ignore_patterns, or tell "
                "whoever keeps the source.",
            )


def find_fault(file: ListedFile, path: Path) -> str:
    """Why the file at `path` is not the listed one; "" when it is. Reads it once."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"it has {size} bytes, not {file.size}"
    if file.sha256:
        found = _digest(hashlib.sha256(), path)
        return "" if found == file.sha256 else f"its sha256 is {found}, not {file.sha256}"
    if file.git_sha1:
        head = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
        found = _digest(head, path)
        return "" if found == file.git_sha1 else f"its git id is {found}, not {file.git_sha1}"
    return ""


def _digest(digest: hashlib._Hash, path: Path) -> str:  # pyright: ignore[reportPrivateUsage]
    with path.open("rb") as file:
        while chunk := file.read(READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
