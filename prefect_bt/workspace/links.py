"""Rewrite the links of a packed folder so that they work in a node.

Truss keeps the text of every link to a file, even if its target is not packed. Unpacking refuses
links that lead outside, so such a link is replaced by the content of its target.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace
from pathlib import Path

from prefect_bt.workspace.pack_entry import PackEntry


def rewrite_links(entries: list[PackEntry], root: Path) -> list[PackEntry]:
    """`entries` of a direct layout of `root`, each link made fit for a node (see _place_link)."""
    names = {entry.name for entry in entries}
    return [entry if entry.link is None else _rewrite_link(entry, names, root) for entry in entries]


def _rewrite_link(entry: PackEntry, names: set[str], root: Path) -> PackEntry:
    """The link as it must be written to work in a node.

    Kept where its target is packed too (an absolute one is rewritten as relative). Where the target
    stays behind, the link could only dangle in the node, so the content travels in its place.
    """
    target = entry.path.parent / (entry.link or "")
    try:
        # The last component stays unresolved: a link to a link stays one.
        place = (target.parent.resolve() / target.name).relative_to(root).as_posix()
    except ValueError:
        return replace(entry, link=None)
    if place not in names:
        return replace(entry, link=None)
    link = posixpath.relpath(place, posixpath.dirname(entry.name) or ".")
    return replace(entry, link=link, size=0, mode=0o777)
