"""The links of a tree that is being unpacked, and where each of them really leads.

A link is placed freely as long as its text stays inside. All links are resolved as the kernel would
do it before the tree is published, because text that stays inside can lead outside through another
link.
"""

from __future__ import annotations

import posixpath
from typing import Final

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace.limits import MAX_DEPTH, MAX_LINK_BYTES, MAX_LINKS_FOLLOWED
from prefect_bt.workspace.tar_stream import refused, spelled

_ENTRY_OVERHEAD_BYTES: Final = 128
"""Python's own share of a name that is kept."""


class LinkTable:
    """Links by name, `/` between parts, relative to the root. Methods raise WorkspaceError."""

    def __init__(self) -> None:
        self._targets: dict[str, str] = {}
        self._resolved: dict[str, tuple[str, int]] = {}
        self._bytes = 0

    def add(self, name: str, target: str) -> None:
        self._count(name, name, target)
        self._targets[name] = target

    def discard(self, name: str) -> None:
        self._targets.pop(name, None)

    def check(self) -> None:
        """Refuse any link that really leads outside, however many links it goes through."""
        for name in self._targets:
            self._resolve(name, member=name, depth=1)

    def _resolve(self, link: str, *, member: str, depth: int) -> tuple[str, int]:
        """Return where `link` leads and how many links are followed; a circle leads to itself."""
        if link in self._resolved:
            return self._resolved[link]
        if depth > MAX_LINKS_FOLLOWED:
            raise _too_many_links_error(member)
        self._resolved[link] = link, 0
        path, followed = posixpath.dirname(link), 1
        for part in self._targets[link].split("/"):
            if part == ".." and not path:
                raise _outside_error(member, self._targets[member])
            if part == "..":
                path = posixpath.dirname(path)
            elif part not in ("", "."):
                path = posixpath.join(path, part)
                if path in self._targets:
                    path, more = self._resolve(path, member=member, depth=depth + 1)
                    followed += more
        if followed > MAX_LINKS_FOLLOWED:
            raise _too_many_links_error(member)
        self._count(member, path)
        self._resolved[link] = path, followed
        return path, followed

    def _count(self, member: str, *kept: str) -> None:
        self._bytes += sum(_ENTRY_OVERHEAD_BYTES + len(text) for text in kept)
        if self._bytes > MAX_LINK_BYTES:
            raise refused(
                member, f"is one link too many: all links together take {MAX_LINK_BYTES} bytes"
            )


def check_target(folder: str, member: str, target: str) -> None:
    """Refuse the text of a link in `folder` that is impossible, leads outside or is too deep."""
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
