"""Rewrite links of pages that were written for the repository."""

from __future__ import annotations

import posixpath
import re
from pathlib import PurePosixPath

BROUGHT = {
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Files outside docs/ that are pages of the site, and the names of their pages."""
_FENCE = re.compile(r"(^ *(?:```|~~~).*?^ *(?:```|~~~) *$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def rewrite_links(markdown: str, source: str, page: str) -> str:
    """Return the text of a page with links that work on the site.

    `source` is the file's path in the repository, `page` that of its page below docs/. A link to a
    file outside the site becomes the file's name as code, because the repository has no public
    address.
    """
    folder = PurePosixPath(source).parent

    def replace(link: re.Match[str]) -> str:
        text, path, anchor = link[1], posixpath.normpath(folder / link[2]), link[3] or ""
        target = BROUGHT.get(path) or (path.removeprefix("docs/") if _is_below_docs(path) else None)
        if target is None:
            return _name_file(text, path)
        if not PurePosixPath(target).suffix:
            target += "/index.md"
        return f"[{text}]({posixpath.relpath(target, PurePosixPath(page).parent)}{anchor})"

    parts = _FENCE.split(markdown)
    return "".join(
        part if index % 2 else _LINK.sub(replace, part) for index, part in enumerate(parts)
    )


def _is_below_docs(path: str) -> bool:
    return path.startswith("docs/")


def _name_file(text: str, path: str) -> str:
    bare = text.strip("`")
    return f"`{bare}`" if bare in {path, PurePosixPath(path).name} else f"{text} (`{path}`)"
