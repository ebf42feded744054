"""One member of an archive to be, as the walk hands it to the writer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PackEntry:
    """One archive member. `name` and `link` are posix and relative; `size` is in bytes.

    `stamp` is what must not change until the content is packed: device, inode, size, mtime (ns).
    """

    name: str
    path: Path
    size: int
    mode: int
    stamp: tuple[int, int, int, int]
    link: str | None = None


@dataclass(frozen=True, slots=True)
class IgnoredEntry:
    """A file or folder that the built-in ignore list left out. `name` as in PackEntry."""

    name: str
    path: Path
    is_folder: bool

    @property
    def display_name(self) -> str:
        """The name, with a final slash for a folder."""
        return f"{self.name}/" if self.is_folder else self.name


def make_stamp(state: os.stat_result) -> tuple[int, int, int, int]:
    """What tells one version of a file from another; see PackEntry."""
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
