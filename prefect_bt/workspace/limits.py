"""Limits of a workspace, for packing and unpacking."""

from __future__ import annotations

from typing import Final

MAX_WORKSPACE_BYTES: Final = 5 * 1024**3
"""Maximum size of the archive in bytes, as on Baseten."""

MAX_WORKSPACE_ENTRIES: Final = 1_000_000
"""Ours: a small archive of empty files could otherwise use up every inode of a node's disk."""

MAX_DEPTH: Final = 256
"""Limit for the parts of a name or of a link's target: each part of a name makes a folder."""

MAX_LINKS_FOLLOWED: Final = 40
"""Limit for a chain of links. Linux follows no more (path_resolution(7))."""

MAX_LINK_BYTES: Final = 64 * 1024**2
"""Limit for the names and targets of all links together, which are kept in memory."""

MAX_HEADER_BYTES: Final = 1024**2
"""Limit for the headers of one member: extended headers and long names."""

MAX_GLOBAL_RECORDS: Final = 64
"""Limit for the global headers of an archive. `git archive` writes one record."""

UNPACK_SLACK_BYTES: Final = 64 * 1024**2
"""Bytes that other archivers may spend on headers and padding beyond MAX_WORKSPACE_BYTES."""


def format_bytes(count: int) -> str:
    """Return `count` bytes in binary units: "17 bytes", "6.00 GiB"."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} bytes" if unit == "bytes" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"
