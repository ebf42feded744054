"""The folder that is being filled from an archive: one member at a time, inside or not at all.

Nothing is ever written through a link: every parent is checked on the file system itself, files are
created anew, and a later member of the same name replaces an earlier file or link by removing it
first (as tar does). Links are placed freely as long as their text stays inside, then all of them
are resolved for real by `check_links` before the folder is published.
"""

from __future__ import annotations

import os
import stat
import tarfile
from pathlib import Path
from typing import IO, Final

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace.limits import MAX_DEPTH
from prefect_bt.workspace.link_table import LinkTable, check_target
from prefect_bt.workspace.tar_stream import CHUNK_BYTES, refused, spelled

_Parts = tuple[str, ...]
_PERMISSIONS: Final = 0o777
_MAX_REMEMBERED: Final = 10_000
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class ExtractionRoot:
    """Members under `root`, an empty folder of ours. Methods raise WorkspaceError or OSError.

    What is where is asked of the file system. Of that, the links are kept in memory.
    """

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._folders: set[_Parts] = set()
        """Some that are there, so that not all above every member are looked at."""
        self._links = LinkTable()
        self.folders_made = 0

    def add_folder(self, member: tarfile.TarInfo) -> None:
        """Create the folder with the member's permissions; the owner always keeps access."""
        parts = parse_member_name(member.name)
        path = self._ensure_folder(parts, member.name)
        if parts:
            Path(path).chmod(member.mode & _PERMISSIONS | stat.S_IRWXU)

    def add_file(self, member: tarfile.TarInfo, content: IO[bytes]) -> None:
        """Write `content` with the member's permissions, less setuid, setgid and sticky bits."""
        path = self._prepare_path(member.name)
        with os.fdopen(os.open(path, _NEW_FILE, 0o600), "wb") as file:
            left = member.size
            while left:
                chunk = content.read(min(left, CHUNK_BYTES))
                if not chunk:
                    raise refused(member.name, "is cut short", "Pack and upload it again.")
                file.write(chunk)
                left -= len(chunk)
            os.fchmod(file.fileno(), member.mode & _PERMISSIONS)

    def add_symlink(self, member: tarfile.TarInfo) -> None:
        parts = parse_member_name(member.name)
        check_target("/".join(parts[:-1]), member.name, member.linkname)
        self._prepare_path(member.name).symlink_to(member.linkname)
        self._links.add("/".join(parts), member.linkname)

    def add_hard_link(self, member: tarfile.TarInfo) -> None:
        source = parse_member_name(member.linkname)
        way = self._root
        for part in source[:-1]:
            way = f"{way}/{part}"
            if not stat.S_ISDIR(_read_mode(way)):
                raise _no_earlier_file_error(member)
        path = "/".join((self._root, *source))
        if not stat.S_ISREG(_read_mode(path)):
            raise _no_earlier_file_error(member)
        if source != parse_member_name(member.name):
            os.link(path, self._prepare_path(member.name))

    def check_links(self) -> None:
        """Refuse any link that really leads outside, however many links it goes through."""
        self._links.check()

    def _prepare_path(self, name: str) -> Path:
        """The path for a new file or link: parents exist, nothing is in its place."""
        parts = parse_member_name(name)
        if not parts:
            raise refused(name, "is the workspace itself, but not a folder")
        path = f"{self._ensure_folder(parts[:-1], name)}/{parts[-1]}"
        if stat.S_ISDIR(_read_mode(path)):
            raise refused(name, "takes the name of a folder")
        Path(path).unlink(missing_ok=True)
        self._links.discard("/".join(parts))
        return Path(path)

    def _ensure_folder(self, parts: _Parts, name: str) -> str:
        """Create the folders that are missing. Nothing replaces a folder that is there."""
        checked = len(parts)
        while checked and parts[:checked] not in self._folders:
            checked -= 1
        path = "/".join((self._root, *parts[:checked]))
        for part in parts[checked:]:
            path = f"{path}/{part}"
            mode = _read_mode(path)
            if not mode:
                Path(path).mkdir()
                self.folders_made += 1
            elif not stat.S_ISDIR(mode):
                raise refused(name, "would be written through a link or a file placed earlier")
        if len(self._folders) >= _MAX_REMEMBERED:
            self._folders.clear()
        self._folders.add(parts)
        return path


def parse_member_name(name: str) -> _Parts:
    """The components of a member's name; refuses what could point outside the archive."""
    if not name or "\0" in name:
        raise refused(name, "has an empty or impossible name")
    if name.startswith("/"):
        raise refused(name, "has an absolute name")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise refused(name, "has a name that climbs out with '..'")
    if len(parts) > MAX_DEPTH:
        raise refused(name, f"lies in more than {MAX_DEPTH - 1} folders")
    return parts


def _read_mode(path: str) -> int:
    """Return the mode of what is at `path`, a link itself and not its target; 0 for nothing."""
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return 0


def _no_earlier_file_error(member: tarfile.TarInfo) -> WorkspaceError:
    return refused(member.name, f"is a hard link to {spelled(member.linkname)}, no earlier file")
