"""What the Hub answers, checked: a Hub, or a server at HF_ENDPOINT, is not trusted.

A digest and a commit become paths, keys of objects and parts of URLs, so they have one form each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from prefect_bt.weights.listing import SHA256, ListedFile, quote

COMMIT: Final = re.compile(r"[0-9a-f]{40}")
"""A commit, and the id of git's blob object."""


class Malformed(Exception):
    """An answer that no Hub gives; `why` is a part of a sentence, without controls, and short."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


def parse_commit(found: object) -> str:
    """Return the commit that the Hub names for a revision. Malformed."""
    return _matched(COMMIT, found, "names as the commit")


def parse_file(entry: Mapping[str, Any]) -> ListedFile:
    """Return the file of a listing's entry. Malformed."""
    path, lfs = str(entry["path"]), entry.get("lfs")
    of = f"of {quote(path)}"
    xet = entry.get("xetHash")
    return ListedFile(
        path=path,
        size=(lfs or entry).get("size"),
        sha256="" if lfs is None else _matched(SHA256, lfs.get("oid"), f"gives as SHA-256 {of}"),
        git_sha1=_matched(COMMIT, entry.get("oid"), f"gives as git id {of}") if lfs is None else "",
        xet="" if xet is None else _matched(SHA256, xet, f"gives as Xet hash {of}"),
    )


def _matched(form: re.Pattern[str], found: object, what: str) -> str:
    if isinstance(found, str) and form.fullmatch(found):
        return found
    digits = 64 if form is SHA256 else 40
    raise Malformed(f"{what} {quote(found)}, not {digits} hexadecimal digits")
