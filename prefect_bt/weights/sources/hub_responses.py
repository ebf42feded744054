"""Checks of the Hub's answers: a server at HF_ENDPOINT is not trusted.

Digests and commits become paths, keys of objects and parts of URLs, so their form is checked.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, cast
from urllib.parse import urlsplit

from prefect_bt.weights.sources.file_listing import SHA256, ListedFile, quote
from prefect_bt.weights.sources.http_source import HttpFault

COMMIT: Final = re.compile(r"[0-9a-f]{40}")
"""A commit, and the id of git's blob object."""
MAX_PAGE_BYTES: Final = 8 << 20
"""The Hub sends pages of 1000 files, half a megabyte."""
MAX_PAGE_SECONDS: Final = 300.0
MAX_ENTRIES: Final = 200_000
"""Twice the Hub's limit for a repository."""
MAX_PAGES: Final = 2_000
_MAX_PATH_CHARS: Final = 4096
"""Longer paths are not even compared with patterns."""
_NEXT_LINK: Final = re.compile(r'<([^<>]+)>;\s*rel="?next"?')


class MalformedResponse(HttpFault):
    """An answer that no Hub sends. `reason` is a short part of a sentence without controls."""


def parse_commit(document: object) -> str:
    """Return the commit in the Hub's answer about a revision. MalformedResponse."""
    if not isinstance(document, dict):
        raise MalformedResponse(f"is {quote(document)}, which is no repository")
    found = cast("dict[str, object]", document)
    return _match(COMMIT, found.get("sha"), "names as the commit")


def read_document(pieces: Iterable[bytes], deadline: float) -> Any:
    """Return the JSON of a body, read until `deadline` of the monotonic clock.

    MalformedResponse; HttpFault if it is no JSON, or too slow.
    """
    body = bytearray()
    for piece in pieces:
        body += piece
        if len(body) > MAX_PAGE_BYTES:
            raise MalformedResponse(f"has more than {MAX_PAGE_BYTES >> 20} MiB")
        if time.monotonic() > deadline:
            raise HttpFault(f"no page in {MAX_PAGE_SECONDS:g} s")
    try:
        return json.loads(body)
    except RecursionError:
        raise MalformedResponse("is nested too deeply") from None
    except ValueError:  # most often an error page of a proxy
        raise HttpFault("the answer is no JSON") from None


def iter_files(
    get_document: Callable[[str], tuple[Any, Mapping[str, str]]], url: str
) -> Iterator[ListedFile]:
    """Yield the files of a listing, whose first page is at `url`. MalformedResponse."""
    requested: set[str] = set()
    entries = 0
    while url:
        requested.add(url)
        page, headers = get_document(url)
        if not isinstance(page, list):
            raise MalformedResponse(f"is {quote(page)}, not a list of files")
        entries += len(cast("list[object]", page))
        if entries > MAX_ENTRIES or len(requested) > MAX_PAGES:
            raise MalformedResponse(f"has more than {MAX_ENTRIES:,} files, or {MAX_PAGES:,} pages")
        yield from filter(None, map(_parse_entry, cast("list[object]", page)))
        url = _next_page(headers.get("Link", ""), url)
        if url in requested:
            raise MalformedResponse("names a page as the next one that it sent before")


def _next_page(link: str, url: str) -> str:
    """Return the URL of the page after that of `url`; "" for none. ValueError for what is no URL.

    Only the query of the link counts: the token is sent to where `url` is, and the link of a
    mirror may name the Hub itself.
    """
    found = _NEXT_LINK.search(link)
    return urlsplit(url)._replace(query=urlsplit(found[1]).query).geturl() if found else ""


def _parse_entry(entry: object) -> ListedFile | None:
    """Return the file of a listing's entry; None for a folder. MalformedResponse."""
    if not isinstance(entry, dict):
        raise MalformedResponse(f"lists {quote(entry)}, which is no file")
    found = cast("dict[str, object]", entry)
    if found.get("type") != "file":
        return None
    path, lfs = found.get("path"), found.get("lfs")
    if not isinstance(path, str) or len(path) > _MAX_PATH_CHARS:
        raise MalformedResponse(f"gives as a path {quote(path)}")
    of = f"of {quote(path)}"
    if lfs is None:
        size, sha256 = found.get("size"), ""
        git_sha1 = _match(COMMIT, found.get("oid"), f"gives as git id {of}")
    elif isinstance(lfs, dict):
        pointer = cast("dict[str, object]", lfs)
        size, git_sha1 = pointer.get("size", found.get("size")), ""
        sha256 = _match(SHA256, pointer.get("oid"), f"gives as SHA-256 {of}")
    else:
        raise MalformedResponse(f"gives as LFS pointer {of} {quote(lfs)}")
    if type(size) is not int or not 0 <= size < 2**63:
        raise MalformedResponse(f"gives as size {of} {quote(size)}, which is no number of bytes")
    return ListedFile(path, size, sha256=sha256, git_sha1=git_sha1)


def _match(form: re.Pattern[str], found: object, description: str) -> str:
    if isinstance(found, str) and form.fullmatch(found):
        return found
    digits = 64 if form is SHA256 else 40
    raise MalformedResponse(f"{description} {quote(found)}, not {digits} hexadecimal digits")
