"""Write the members of an archive below a folder; refuse members that would lie outside it.

Links are created last, when no file is written any more, so nothing is written through a link. A
link whose target leads through another link is refused, so the text of a link alone determines its
target; `pack_workspace` writes no such links. A later member replaces an earlier file or link with
the same name, as in tar; nothing replaces a folder.
"""

from __future__ import annotations

import errno
import os
import posixpath
import shutil
import stat
import tarfile
from pathlib import Path
from typing import IO, Final

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace.limits import MAX_DEPTH, MAX_LINK_BYTES, MAX_LINKS_FOLLOWED
from prefect_bt.workspace.tar_reader import CHUNK_BYTES, quote_name, refused_member

_PERMISSIONS: Final = 0o777
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_MAX_TARGET_BYTES: Final = 4096
_LINK_OVERHEAD_BYTES: Final = 256
"""Python's own share of a link that is kept in memory."""


class ExtractionRoot:
    """Writer of archive members below `root`, an empty folder of this process.

    A name is a link in `_links`, or a file or folder on the file system, never both. Methods raise
    WorkspaceError or OSError.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._links: dict[str, str] = {}
        self._link_bytes = 0
        self._last_folder = ""
        self.folders_made = 0

    def add_folder(self, member: tarfile.TarInfo) -> None:
        """Create the folder with the member's permissions; the owner always keeps access."""
        name = _normalize(member.name)
        self._ensure_folder(name, member.name)
        if name:
            (self._root / name).chmod(member.mode & _PERMISSIONS | stat.S_IRWXU)

    def add_file(self, member: tarfile.TarInfo, content: IO[bytes]) -> None:
        """Write `content` with the member's permissions, less setuid, setgid and sticky bits."""
        path = self._root / self._make_room(member.name)
        with os.fdopen(os.open(path, _NEW_FILE, 0o600), "wb") as file:
            shutil.copyfileobj(content, file, CHUNK_BYTES)
            os.fchmod(file.fileno(), member.mode & _PERMISSIONS)

    def add_symlink(self, member: tarfile.TarInfo) -> None:
        """Check the text of the link and keep it for `create_links`."""
        name, target = self._make_room(member.name), member.linkname
        if len(os.fsencode(target)) >= _MAX_TARGET_BYTES:  # symlink(2), which is called much later
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        if target.count("/") >= MAX_DEPTH:
            why = f"is a link with a target of more than {MAX_DEPTH} parts"
            raise refused_member(member.name, why)
        reached = f"{_resolve(name, target)}/"
        if not target or "\0" in target or reached.startswith(("/", "../")):
            raise _outside_error(member.name, target)
        self._link_bytes += _LINK_OVERHEAD_BYTES + len(name) + len(target)
        if self._link_bytes > MAX_LINK_BYTES:
            why = f"is one link too many: all links together take {MAX_LINK_BYTES} bytes"
            raise refused_member(member.name, why)
        self._links[name] = target

    def add_hard_link(self, member: tarfile.TarInfo) -> None:
        """Link to a file that an earlier member wrote."""
        source = _normalize(member.linkname)
        if not (self._root / source).is_file():
            why = f"is a hard link to {quote_name(member.linkname)}, no earlier file"
            raise refused_member(member.name, why)
        if source != _normalize(member.name):
            (self._root / self._make_room(member.name)).hardlink_to(self._root / source)

    def create_links(self) -> None:
        """Create the links after all other members."""
        for name, target in self._links.items():
            self._check_link(name, target)
        for name, target in self._links.items():
            (self._root / name).symlink_to(target)

    def _check_link(self, name: str, target: str) -> None:
        place = posixpath.dirname(name)
        for part in target.split("/"):
            if place in self._links:
                raise _outside_error(name, target)
            place = posixpath.normpath(posixpath.join(place, part))
        followed = {name}
        while place in self._links and place not in followed:
            followed.add(place)
            if len(followed) > MAX_LINKS_FOLLOWED:
                why = f"is a link that goes through more than {MAX_LINKS_FOLLOWED} links"
                raise refused_member(name, why)
            place = _resolve(place, self._links[place])

    def _make_room(self, member: str) -> str:
        """Return the name for a new file or link: its folder exists, nothing has the name."""
        name = _normalize(member)
        if not name:
            raise refused_member(member, "is the workspace itself, but not a folder")
        self._ensure_folder(posixpath.dirname(name), member)
        try:
            (self._root / name).unlink(missing_ok=True)
        except IsADirectoryError as error:
            raise refused_member(member, "takes the name of a folder") from error
        self._links.pop(name, None)
        return name

    def _ensure_folder(self, name: str, member: str) -> None:
        if name == self._last_folder:
            return
        if name in self._links:
            raise _through_error(member)
        path = self._root / name
        try:
            path.mkdir()
            self.folders_made += 1
        except FileNotFoundError:
            self._ensure_folder(posixpath.dirname(name), member)
            path.mkdir()
            self.folders_made += 1
        except (FileExistsError, NotADirectoryError) as error:
            if not path.is_dir():
                raise _through_error(member) from error
        self._last_folder = name


def _normalize(name: str) -> str:
    """Return a member's name without empty parts; refuse one that could lead outside."""
    if not name or "\0" in name:
        raise refused_member(name, "has an empty or impossible name")
    if name.startswith("/"):
        raise refused_member(name, "has an absolute name")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise refused_member(name, "has a name that climbs out with '..'")
    if len(parts) > MAX_DEPTH:
        raise refused_member(name, f"lies in more than {MAX_DEPTH - 1} folders")
    return "/".join(parts)


def _resolve(link: str, target: str) -> str:
    """Return where a link with this text leads when no other link is on its way."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(link), target))


def _through_error(member: str) -> WorkspaceError:
    return refused_member(member, "would be written through a link or a file placed earlier")


def _outside_error(member: str, target: str) -> WorkspaceError:
    return refused_member(
        member,
        "is a link that leads outside the workspace, or through another link "
        f"(to {quote_name(target)})",
    )
