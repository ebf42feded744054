"""The file of an object, and the part of it that a request asks for; every file server uses it."""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Final

CHUNK_BYTES: Final = 1024 * 1024
_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
_MISSING_ERRNOS: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EISDIR}
)


def open_object(root: Path, key: str) -> int:
    """Open the regular file of an object for reading; `root` is resolved.

    Raise FileNotFoundError if there is none, or a link leads outside `root`; another OSError if the
    file cannot be read now.
    """
    try:
        path = (root / key).resolve(strict=True)
        if not path.is_relative_to(root):
            raise FileNotFoundError(key)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno not in _MISSING_ERRNOS | {None}:
            raise
        raise FileNotFoundError(key) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(key)
    return descriptor


@dataclass(frozen=True)
class FilePart:
    """The answer to a request: bytes `start` to `end` (exclusive) of the file."""

    status: int
    start: int
    end: int
    headers: dict[str, str]


def select_part(wanted: str, if_range: str | None, *, etag: str, size: int, at: float) -> FilePart:
    """Return the part for the headers Range and If-Range; status 416 and no bytes if it has none.

    `etag` is quoted; `at`: when the file was modified, in epoch seconds.
    """
    modified = formatdate(at, usegmt=True)
    headers = {
        "ETag": etag,
        "Last-Modified": modified,
        "Accept-Ranges": "bytes",
        "Content-Type": "application/octet-stream",
    }
    found = parse_range(wanted, size) if if_range in (None, etag, modified) else None
    if found is None:
        return FilePart(200, 0, size, headers)
    start, end = found
    if start >= end:
        return FilePart(416, 0, 0, {"Content-Range": f"bytes */{size}"})
    return FilePart(
        206, start, end, {**headers, "Content-Range": f"bytes {start}-{end - 1}/{size}"}
    )


def parse_range(header: str, size: int) -> tuple[int, int] | None:
    """Return begin and end of the range, end first for an empty one; None for all bytes.

    >>> [parse_range(one, 9) for one in ("bytes=2-5", "bytes=-3", "bytes=9-", "")]
    [(2, 6), (6, 9), (9, 9), None]
    """
    found = _RANGE.fullmatch(header)
    if found is None or header == "bytes=-":
        return None
    first, last = found.groups()
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size
