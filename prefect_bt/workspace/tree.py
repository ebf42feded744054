"""The folder that is being filled from an archive: one member at a time, inside or not at all.

Nothing is ever written through a link: every parent is checked on the file system itself, files are
created anew, and a later member of the same name replaces an earlier file or link by removing it
first (as tar does). Links are placed freely as long as their text stays inside, then all of them
are resolved for real by `check_links` before the folder is published.
"""

from __future__ import annotations

import os
import posixpath
import stat
import tarfile
from pathlib import Path
from typing import IO, Final

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace.streams import CHUNK_BYTES

_Parts = tuple[str, ...]
_PERMISSIONS: Final = 0o777
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class Tree:
    """Members under `root`, an empty folder of ours. Methods raise WorkspaceError or OSError."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders: set[_Parts] = {()}
        self._folder_modes: dict[_Parts, int] = {}
        self._links: dict[_Parts, str] = {}

    def place_folder(self, member: tarfile.TarInfo) -> None:
        parts = safe_parts(member.name)
        self._ensure_folder(parts, member.name)
        if parts:
            self._folder_modes[parts] = member.mode & _PERMISSIONS

    def place_file(self, member: tarfile.TarInfo, content: IO[bytes]) -> None:
        """Write `content` with the member's permissions, less setuid, setgid and sticky bits."""
        path = self._make_way(member.name)
        with os.fdopen(os.open(path, _NEW_FILE, 0o600), "wb") as file:
            left = member.size
            while left:
                chunk = content.read(min(left, CHUNK_BYTES))
                if not chunk:
                    raise refused(member.name, "is cut short", "Pack and upload it again.")
                file.write(chunk)
                left -= len(chunk)
            os.fchmod(file.fileno(), member.mode & _PERMISSIONS)

    def place_link(self, member: tarfile.TarInfo) -> None:
        parts = safe_parts(member.name)
        reached = posixpath.normpath(posixpath.join(*parts[:-1], member.linkname))
        if not member.linkname or "\0" in member.linkname or _leads_out(reached):
            raise _outside(member.name, member.linkname)
        self._make_way(member.name).symlink_to(member.linkname)
        self._links[parts] = member.linkname

    def place_hard_link(self, member: tarfile.TarInfo) -> None:
        source = safe_parts(member.linkname)
        path = self._root.joinpath(*source)
        is_placed = source[:-1] in self._folders and path.is_file() and not path.is_symlink()
        if not is_placed:
            raise refused(member.name, f"is a hard link to {member.linkname!r}, no earlier file")
        if source == safe_parts(member.name):
            return
        os.link(path, self._make_way(member.name))

    def check_links(self) -> None:
        """Refuse any link that really leads outside, however many links it goes through."""
        root = os.path.realpath(self._root)
        for parts, text in self._links.items():
            reached = os.path.realpath(self._root.joinpath(*parts))
            if reached != root and not reached.startswith(root + os.sep):
                raise _outside("/".join(parts), text)

    def finish_folders(self) -> None:
        """Give folders their own modes, deepest first; the owner always keeps access."""
        for parts in sorted(self._folder_modes, key=len, reverse=True):
            self._root.joinpath(*parts).chmod(self._folder_modes[parts] | stat.S_IRWXU)

    def _make_way(self, name: str) -> Path:
        """The path for a new file or link: parents exist, nothing is in its place."""
        parts = safe_parts(name)
        if not parts:
            raise refused(name, "is the workspace itself, yet no folder")
        if parts in self._folders:
            raise refused(name, "takes the name of a folder")
        self._ensure_folder(parts[:-1], name)
        path = self._root.joinpath(*parts)
        path.unlink(missing_ok=True)
        self._links.pop(parts, None)
        return path

    def _ensure_folder(self, parts: _Parts, name: str) -> None:
        for end in range(1, len(parts) + 1):
            if parts[:end] in self._folders:
                continue
            path = self._root.joinpath(*parts[:end])
            if not _is_real_folder(path, name):
                path.mkdir()
            self._folders.add(parts[:end])


def safe_parts(name: str) -> _Parts:
    """The components of a member's name; refuses what could point outside the archive."""
    if not name or "\0" in name:
        raise refused(name, "has an empty or impossible name")
    if name.startswith("/"):
        raise refused(name, "has an absolute name")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise refused(name, "has a name that climbs out with '..'")
    return parts


def _leads_out(path: str) -> bool:
    """Whether a normalized posix path relative to the archive's root leaves it."""
    return path.startswith("/") or path == ".." or path.startswith("../")


def refused(name: str, why: str, next_step: str = "") -> WorkspaceError:
    return WorkspaceError(
        f"The archive member {name!r} {why}.",
        next_step=next_step or "Pack the workspace again from a folder you trust.",
        path=name,
    )


def _outside(name: str, linkname: str) -> WorkspaceError:
    return refused(name, f"is a link that leads outside the workspace (to {linkname!r})")


def _is_real_folder(path: Path, name: str) -> bool:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        raise refused(name, "would be written through a link or a file placed earlier")
    return True
