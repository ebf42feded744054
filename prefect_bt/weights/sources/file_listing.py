"""What a source holds at one revision, and whether bytes on disk are what it said."""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from prefect_bt.errors import WeightsError

SHA256: Final = re.compile(r"[0-9a-f]{64}")
"""A digest as it becomes a path and an object's key; matched in full."""
_REPR: Final = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80
_MAX_NAME_BYTES: Final = 255
"""Bytes, on the file systems that there are."""
_MAX_PATH_BYTES: Final = 2048
"""Bytes; half of what Linux takes, so that the folders above it have room."""
_MAX_DEPTH: Final = 200
"""Folders of a path; some programs that walk through folders need a call of a function for each."""


@dataclass(frozen=True)
class ListedFile:
    """`path` is relative to the mount. What the source does not tell is None or empty."""

    path: str
    size: int | None = None
    sha256: str = ""
    git_sha1: str = ""
    """Of git's blob object: a header with the length, then the bytes."""
    version_tag: str = ""
    """What else pins it upstream: ETag, version, time of the last write. Another: another file."""
    md5: str = ""
    """Where the tag looks like one. Encrypted buckets have tags that only look so."""
    sequential_only: bool = False
    """It can only be read from the beginning to the end: the server knows no ranges."""


@dataclass(frozen=True)
class Listing:
    """A source at one revision, which never changes."""

    source: str
    revision: str
    files: tuple[ListedFile, ...]


def quote(found: object) -> str:
    """Return how a message shows what a server sent: short, and without controls."""
    return _REPR.repr(found)


def validate_paths(source: str, paths: Collection[str]) -> None:
    """WeightsError for a name that would lead out of the mount, or that no file can have."""
    for path in paths:
        if path.startswith(".cache/huggingface/") or not is_mountable(path):
            raise WeightsError(
                f"{source} lists a file named {quote(path)}, which could not lie below the mount.",
                source=source,
                next_step="Nothing was fetched. Leave the file out with ignore_patterns, or tell "
                "whoever keeps the source.",
            )
    _check_clashes(source, frozenset(paths))


def is_mountable(path: str) -> bool:
    """Return whether a file below the mount can have this path.

    Also a manifest is UTF-8: a name that is not could not be told to other hosts.
    """
    parts = path.split("/")
    try:
        longest, whole = max(len(part.encode()) for part in parts), len(path.encode())
    except UnicodeEncodeError:
        return False
    fits = longest <= _MAX_NAME_BYTES and whole <= _MAX_PATH_BYTES and len(parts) <= _MAX_DEPTH
    return fits and "\0" not in path and not {"", ".", ".."}.intersection(parts)


def _check_clashes(source: str, paths: frozenset[str]) -> None:
    # With NUL, which is in no name, what lies in a folder follows the folder.
    ordered = sorted(paths, key=lambda path: path.replace("/", "\0"))
    for above, below in pairwise(ordered):
        if below.startswith(f"{above}/"):
            raise WeightsError(
                f"{source} lists {quote(above)} as a file and {quote(below)} as a file in it.",
                source=source,
                next_step="Leave one of them out with ignore_patterns.",
            )


def compute_revision(files: Iterable[ListedFile]) -> str:
    """A name for these files as they are, of a source that has none of its own."""
    seen = sorted((file.path, file.size, file.sha256, file.version_tag) for file in files)
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:40]


def create_digests(file: ListedFile, size: int) -> dict[str, Any]:
    """Name -> hashlib object: what tells whether `size` bytes are the listed file.

    Always sha256, by which the content is kept; others where the source tells nothing better.
    """
    digests: dict[str, Any] = {"sha256": hashlib.sha256()}
    if file.git_sha1 and not file.sha256:
        head = b"blob %d\0" % size
        digests["git_sha1"] = hashlib.sha1(head, usedforsecurity=False)
    elif file.md5 and not file.sha256:
        digests["md5"] = hashlib.md5(usedforsecurity=False)
    return digests


def describe_mismatch(file: ListedFile, size: int, found: Mapping[str, str]) -> str:
    """Why `size` bytes with these digests are not the listed file; "" when they are."""
    if file.size is not None and size != file.size:
        return f"it has {size} bytes, not {file.size}"
    told = {"sha256": file.sha256, "git_sha1": file.git_sha1, "md5": file.md5}
    names = {"sha256": "sha256", "git_sha1": "git id", "md5": "md5"}
    for kind, digest in found.items():
        if told[kind] and digest != told[kind]:
            return f"its {names[kind]} is {digest}, not {told[kind]}"
    return ""
