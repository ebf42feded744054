"""One file behind a URL as a weights source: `https://host/path/file`.

The file has the name of the last part of the URL's path. It is pinned by its ETag, else by its
Last-Modified, and by its length. A query can be a signature and is never shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from prefect_bt.weights.sources.file_listing import ListedFile, Listing, compute_revision
from prefect_bt.weights.sources.http_faults import HttpFault
from prefect_bt.weights.sources.http_source import HttpSource
from prefect_bt.weights.sources.protocol import STALL_TIMEOUT

if TYPE_CHECKING:
    import httpx
    from obstore import GetResult
    from obstore.store import HTTPStore

_PARTIAL, _RANGE_NOT_SATISFIABLE = 206, 416
_CONTENT_RANGE: Final = re.compile(r"bytes (?:\d+-\d+|\*)/(\d{1,18}|\*)")


class WebSource(HttpSource):
    """Implements weights.sources.protocol.Source."""

    pinned_revision = ""

    def __init__(
        self, source: str, token: str | None, *, stall_timeout: float = STALL_TIMEOUT
    ) -> None:
        super().__init__(source, token, stall_timeout=stall_timeout)
        self._name = unquote(urlsplit(source).path.rpartition("/")[2])
        if not self._name:
            raise self._error("names no file", "Write the URL of one file: https://host/path/file.")
        self._store: HTTPStore | None = None

    def list_files(self) -> Listing:
        with self._translate_errors():
            self._store = self._client.open_store(self._source)
            try:
                answer = self._client.probe(self._source)
                status, headers = answer.status_code, answer.headers
            except HttpFault as fault:
                status, headers = fault.status, fault.headers
                if status != _RANGE_NOT_SATISFIABLE or _total_bytes(status, headers) != 0:
                    raise
        size, tag = _total_bytes(status, headers), _tag(headers)
        if not tag and size is None:
            raise self._error(
                "has neither ETag nor Last-Modified nor a length, so no version of it can be kept",
                "Fetch it in your start command instead.",
            )
        whole = size != 0 and status != _PARTIAL
        file = ListedFile(self._name, size, version_tag=tag, sequential_only=whole)
        return Listing(self._source, compute_revision([file]), (file,))

    def _file_url(self, file: ListedFile) -> str:
        return self._source

    def _get_block(self, file: ListedFile, start: int, end: int) -> GetResult:
        assert self._store is not None, "list_files comes first"
        try:
            answer = self._client.get_block(self._store, "", start, end, file.size)
        except HttpFault as fault:
            if fault.status:  # obstore returns no headers: Retry-After is in this answer
                self._check_version(file, self._client.probe(self._source))
            raise
        tag = answer.meta["e_tag"] or _format_date(answer.meta["last_modified"])
        self._compare(file, tag, answer.meta["size"])
        return answer

    def _check_version(self, file: ListedFile, answer: httpx.Response) -> None:
        headers = answer.headers
        self._compare(file, _tag(headers), _total_bytes(answer.status_code, headers))

    def _compare(self, file: ListedFile, tag: str, size: int | None) -> None:
        if tag != file.version_tag or size not in {file.size, None}:
            raise self._error("changed while it was read", "Push again when nothing writes there.")


def _total_bytes(status: int, headers: Mapping[str, str]) -> int | None:
    """Return the length of the whole file; None if the answer does not contain it."""
    found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    length = found[1] if found else headers.get("Content-Length", "") if status == 200 else ""
    return int(length) if length.isdecimal() else None


def _tag(headers: Mapping[str, str]) -> str:
    modified = headers.get("Last-Modified", "")
    with suppress(ValueError, OverflowError):
        modified = _format_date(parsedate_to_datetime(modified))
    return headers.get("ETag") or modified


def _format_date(date: datetime) -> str:
    """Return a date as in HTTP headers; "" for the epoch, which obstore uses for no date."""
    return format_datetime(date.astimezone(UTC), usegmt=True) if date.timestamp() else ""
