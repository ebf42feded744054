"""What a source holds at one revision, and whether bytes on disk are what it said."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
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
    tag: str = ""
    """What else pins it upstream: ETag, version, time of the last write. Another: another file."""
    md5: str = ""
    """Where the tag looks like one. Encrypted buckets have tags that only look so."""


@dataclass(frozen=True)
class Listing:
    """A source at one revision, which never changes."""

    source: str
    revision: str
    files: tuple[ListedFile, ...]


def check_names(source: str, paths: Collection[str]) -> None:
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
    _check_clashes(source, frozenset(paths))


def _check_clashes(source: str, paths: frozenset[str]) -> None:
    for path in sorted(paths):
        for parent in PurePosixPath(path).parents:
            if str(parent) in paths:
                raise WeightsError(
                    f"{source} lists {str(parent)!r} as a file and {path!r} as a file in it.",
                    source=source,
                    next_step="Leave one of them out with ignore_patterns.",
                )


def revision_of(files: Iterable[ListedFile]) -> str:
    """A name for these files as they are, of a source that has none of its own."""
    seen = sorted((file.path, file.size, file.sha256, file.tag) for file in files)
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:40]


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
    if file.md5:
        found = _digest(hashlib.md5(usedforsecurity=False), path)
        return "" if found == file.md5 else f"its md5 is {found}, not {file.md5}"
    return ""


def _digest(digest: hashlib._Hash, path: Path) -> str:  # pyright: ignore[reportPrivateUsage]
    with path.open("rb") as file:
        while chunk := file.read(READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
