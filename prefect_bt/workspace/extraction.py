"""Write the members of an archive below a folder, inside it or not at all.

Links are created last, when no file is written any more, so nothing is ever written through a link.
Before that, all links are resolved as the kernel would do it, because text that stays inside can
lead outside through another link. A later member replaces an earlier file or link of its name, as
in tar; nothing replaces a folder.
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
from prefect_bt.workspace.tar_stream import CHUNK_BYTES, refused, spelled

_PERMISSIONS: Final = 0o777
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_MAX_TARGET_BYTES: Final = 4096
_ENTRY_OVERHEAD_BYTES: Final = 128
"""Python's own share of a name that is kept."""


class ExtractionRoot:
    """Members below `root`, an empty folder that nothing else uses.

    A name is a link in `_links`, or a file or folder on the file system, never both. Methods raise
    WorkspaceError or OSError.
    """

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._links = _Links()
        self._last_folder = ""
        self.folders_made = 0

    def add_folder(self, member: tarfile.TarInfo) -> None:
        """Create the folder with the member's permissions; the owner always keeps access."""
        name = normalize_member_name(member.name)
        self._ensure_folder(name, member.name)
        if name:
            Path(self._locate(name)).chmod(member.mode & _PERMISSIONS | stat.S_IRWXU)

    def add_file(self, member: tarfile.TarInfo, content: IO[bytes]) -> None:
        """Write `content` with the member's permissions, less setuid, setgid and sticky bits."""
        path = self._locate(self._make_room(member.name))
        with os.fdopen(os.open(path, _NEW_FILE, 0o600), "wb") as file:
            shutil.copyfileobj(content, file, CHUNK_BYTES)
            os.fchmod(file.fileno(), member.mode & _PERMISSIONS)

    def add_symlink(self, member: tarfile.TarInfo) -> None:
        """Check the text of the link and keep it for `create_links`."""
        name = normalize_member_name(member.name)
        _check_target(posixpath.dirname(name), member.name, member.linkname)
        self._links.add(self._make_room(member.name), member.linkname)

    def add_hard_link(self, member: tarfile.TarInfo) -> None:
        """Link to a file that an earlier member wrote."""
        source = normalize_member_name(member.linkname)
        if not Path(self._locate(source)).is_file():
            why = f"is a hard link to {spelled(member.linkname)}, no earlier file"
            raise refused(member.name, why)
        if source != normalize_member_name(member.name):
            os.link(self._locate(source), self._locate(self._make_room(member.name)))

    def create_links(self) -> None:
        """Create the links after all other members; refuse one that leads outside."""
        for name in self._links.targets:
            self._links.resolve(name, member=name)
        for name, target in self._links.targets.items():
            Path(self._locate(name)).symlink_to(target)

    def _locate(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _make_room(self, member: str) -> str:
        """Return the name for a new file or link: its folder exists, nothing has the name."""
        name = normalize_member_name(member)
        if not name:
            raise refused(member, "is the workspace itself, but not a folder")
        self._ensure_folder(posixpath.dirname(name), member)
        try:
            Path(self._locate(name)).unlink(missing_ok=True)
        except IsADirectoryError as error:
            raise refused(member, "takes the name of a folder") from error
        self._links.targets.pop(name, None)
        return name

    def _ensure_folder(self, name: str, member: str) -> None:
        if name == self._last_folder:
            return
        if name in self._links.targets:
            raise _through_link_error(member)
        path = Path(self._locate(name))
        try:
            path.mkdir()
            self.folders_made += 1
        except FileNotFoundError:
            self._ensure_folder(posixpath.dirname(name), member)
            path.mkdir()
            self.folders_made += 1
        except (FileExistsError, NotADirectoryError) as error:
            if not path.is_dir():
                raise _through_link_error(member) from error
        self._last_folder = name


def normalize_member_name(name: str) -> str:
    """Return a member's name without empty parts; refuse one that could lead outside."""
    if not name or "\0" in name:
        raise refused(name, "has an empty or impossible name")
    if name.startswith("/"):
        raise refused(name, "has an absolute name")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise refused(name, "has a name that climbs out with '..'")
    if len(parts) > MAX_DEPTH:
        raise refused(name, f"lies in more than {MAX_DEPTH - 1} folders")
    return "/".join(parts)


class _Links:
    """The links by name, relative to the root. Methods raise WorkspaceError."""

    def __init__(self) -> None:
        self.targets: dict[str, str] = {}
        self._resolved: dict[str, tuple[str, int]] = {}
        self._bytes = 0

    def add(self, name: str, target: str) -> None:
        self._count(name, name, target)
        self.targets[name] = target

    def resolve(self, link: str, *, member: str, depth: int = 1) -> tuple[str, int]:
        """Return where `link` leads and how many links are followed; a circle leads to itself."""
        if link in self._resolved:
            return self._resolved[link]
        if depth > MAX_LINKS_FOLLOWED:
            raise _too_many_links_error(member)
        self._resolved[link] = link, 0
        path, followed = posixpath.dirname(link), 1
        for part in self.targets[link].split("/"):
            if part == ".." and not path:
                raise _outside_error(member, self.targets[member])
            if part == "..":
                path = posixpath.dirname(path)
            elif part not in ("", "."):
                path = posixpath.join(path, part)
                if path in self.targets:
                    path, more = self.resolve(path, member=member, depth=depth + 1)
                    followed += more
        if followed > MAX_LINKS_FOLLOWED:
            raise _too_many_links_error(member)
        self._count(member, path)
        self._resolved[link] = path, followed
        return path, followed

    def _count(self, member: str, *kept: str) -> None:
        self._bytes += sum(_ENTRY_OVERHEAD_BYTES + len(text) for text in kept)
        if self._bytes > MAX_LINK_BYTES:
            why = f"is one link too many: all links together take {MAX_LINK_BYTES} bytes"
            raise refused(member, why)


def _check_target(folder: str, member: str, target: str) -> None:
    """Refuse the text of a link in `folder` that is impossible, leads outside or is too deep."""
    if len(os.fsencode(target)) >= _MAX_TARGET_BYTES:  # symlink(2), which is called much later
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    if target.count("/") >= MAX_DEPTH:
        raise refused(member, f"is a link with a target of more than {MAX_DEPTH} parts")
    reached = posixpath.normpath(posixpath.join(folder, target))
    climbs = reached == ".." or reached.startswith(("/", "../"))
    if climbs or not target or "\0" in target:
        raise _outside_error(member, target)


def _outside_error(member: str, target: str) -> WorkspaceError:
    return refused(member, f"is a link that leads outside the workspace (to {spelled(target)})")


def _too_many_links_error(member: str) -> WorkspaceError:
    return refused(member, f"is a link that goes through more than {MAX_LINKS_FOLLOWED} links")


def _through_link_error(member: str) -> WorkspaceError:
    return refused(member, "would be written through a link or a file placed earlier")
