"""Sources over HTTP: obstore reads blocks; httpx reads whole files, pages and headers.

Nothing is retried here. The token is sent to the host of the first URL only, and no redirect leads
from https to http. object_store.connect names the variables for proxies and certificates. A query
can be a signature and is never shown.
"""

from __future__ import annotations

import logging
import re
import ssl
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote, urlsplit

import httpx
import obstore
from obstore.exceptions import BaseError
from obstore.store import HTTPStore

from prefect_bt.credentials.weights_access import parse_token
from prefect_bt.errors import WeightsError
from prefect_bt.object_store.connect import create_http_store
from prefect_bt.object_store.faults import CLOCK_STEP, FaultKind, classify_fault
from prefect_bt.text.quantities import format_elapsed
from prefect_bt.weights.sources import protocol
from prefect_bt.weights.sources.file_listing import ListedFile, Listing, compute_revision

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult

_MAX_RETRY_AFTER: Final = 7 * 24 * 3600.0
_MAX_REDIRECTS: Final = 10
_MAX_STORES: Final = 8
_RETRYABLE_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_ERRORS: Final = (BaseError, OSError, ValueError)
"""Errors of obstore."""
_RESET: Final = re.compile(r"(?<=[;,\s])(?:t|reset)\s*=\s*(\d{1,9})")
_REMAINING: Final = re.compile(r"(?<=[;,\s])(?:r|remaining)\s*=\s*0*[1-9]")
_CONTENT_RANGE: Final = re.compile(r"bytes (?:\d+-\d+|\*)/(\d{1,18}|\*)")


def _remove_queries(record: logging.LogRecord) -> bool:
    """Remove queries, which can be signatures, from httpx's lines about requests."""
    if isinstance(record.args, tuple):
        shown = (a.copy_with(query=None) if isinstance(a, httpx.URL) else a for a in record.args)
        record.args = tuple(shown)
    return True


@dataclass(eq=False)
class HttpFault(Exception):
    """A failed request. `status` and `headers` are those of the answer, if there is one."""

    reason: str
    kind: FaultKind = FaultKind.OTHER
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_transient(self) -> bool:
        if self.status:
            return self.status in _RETRYABLE_STATUSES
        return self.kind in (FaultKind.UNREACHABLE, FaultKind.OTHER)

    @property
    def retry_after(self) -> float:
        """Seconds that the server asks to wait; 0 if it asks for no wait."""
        value, seconds = self.headers.get("Retry-After", "").strip(), 0.0
        if value.isdecimal():
            seconds = float(value)
        elif value:
            with suppress(ValueError, OverflowError):
                seconds = parsedate_to_datetime(value).timestamp() - self._server_time
        else:
            seconds = max([0.0, *_parse_rate_limits(self.headers)])
        return min(max(seconds, 0.0), _MAX_RETRY_AFTER) if self.is_transient else 0.0

    @property
    def is_rate_limit(self) -> bool:
        """Return whether the server is reached, but limits requests or asks for a wait."""
        return self.status == 429 or (self.is_transient and self.retry_after > 0)

    @property
    def _server_time(self) -> float:
        with suppress(ValueError, OverflowError):
            return parsedate_to_datetime(self.headers.get("Date", "")).timestamp()
        return time.time()


def _parse_rate_limits(headers: Mapping[str, str]) -> Iterator[float]:
    """Yield the seconds until each exhausted limit is renewed, in the forms of the IETF's drafts.

    `RateLimit: "api";r=0;t=290`, `RateLimit: limit=10, remaining=0, reset=290`, and
    `RateLimit-Reset: 290`.
    """
    text = headers.get("RateLimit", "")
    for limit in text.split(",") if '"' in text else [text]:
        found = _RESET.search(f" {limit}")
        if found and not _REMAINING.search(f" {limit}"):
            yield float(found[1])
    value = headers.get("RateLimit-Reset", "").strip()
    if not text and value.isdecimal():
        yield float(value)


@lru_cache(1)
def _tls_context(_paths: ssl.DefaultVerifyPaths) -> ssl.SSLContext:
    """Load the certificate authorities, which takes tens of milliseconds, once for these paths."""
    context = ssl.create_default_context()
    # Python 3.13 refuses private authorities without a key identifier; obstore accepts them.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


class HttpSource(protocol.RemoteSource):
    """A source whose files are read over HTTP."""

    def __init__(self, request: protocol.SourceRequest) -> None:
        super().__init__(request)
        self._token = parse_token(request.plan, request.secret) if request.secret else ""
        self._access_step = "Give auth with a token that may read it."
        if self._token:
            self._access_step = "Check that its token is valid and may read it."
        self._setting = "its URL"
        """What contains the server's address, for messages."""
        self._limit_hint = ""
        """Hint how to raise the limit of requests, after a semicolon."""
        self._stores: dict[str, HTTPStore] = {}
        """Path of a file -> store of the URL to which its own URL redirects; "" -> of the root."""
        self._lock = threading.Lock()

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes | memoryview]:
        if file.size == 0:
            return
        with self._translate_errors(file.path):
            # obstore would send the token again where a second redirect stays on another host.
            if start == 0 and (length < 0 or (self._token and length == file.size)):
                with self._get(self._file_url(file)) as answer:
                    self._check_version(file, *_parse_version(answer))
                    yield from answer.iter_raw()
                return
            end = (file.size or 0) if length < 0 else start + length
            block = self._get_block(file, start, end)
            tag = block.meta["e_tag"] or _format_date(block.meta["last_modified"])
            yield from self._iter_block(file, block, tag, end - start)

    def _locate(self, file: ListedFile) -> tuple[str, str]:
        """Return the URL of the source's root, and the path of a file below it."""
        return self._source, ""

    def _file_url(self, file: ListedFile) -> str:
        root, path = self._locate(file)
        return f"{root}/{quote(path)}" if path else root

    def _get_block(self, file: ListedFile, start: int, end: int) -> GetResult:
        whole = (start, end) == (0, file.size)  # then a server without ranges will do
        options: GetOptions = {} if whole else {"range": (start, end)}
        path = self._locate(file)[1] if whole else ""
        try:
            return obstore.get(self._open_store(file, is_root=path != ""), path, options=options)
        except _ERRORS as error:
            fault = self._create_fault(error)
            if not fault.status:
                raise
        # httpx shows the reason and Retry-After, obstore does not. A signed URL may be expired.
        self._stores.pop(file.path, None)
        store = self._open_store(file)
        if fault.is_transient:
            raise fault
        return obstore.get(store, "", options=options)

    def _open_store(self, file: ListedFile, *, is_root: bool = False) -> HTTPStore:
        """Open a store of the URL to which the file's URL redirects, once for all its blocks.

        A store of the root needs no request for a redirect, which the Hub limits.
        """
        key = "" if is_root else file.path
        with self._lock:
            if store := self._stores.get(key):
                return store
            url, token = self._locate(file)[0], self._token
            if not is_root:
                with self._get(self._file_url(file), first_byte=True) as answer:
                    url, sent = str(answer.url), answer.request.headers.get("Authorization")
                # All redirects kept it. For https://user:password@host httpx sends another.
                token = token if sent == f"Bearer {token}" else ""
            is_http = url.startswith("http:")
            store = create_http_store(url, token=token, limits=self._limits, allow_http=is_http)
            if len(self._stores) >= _MAX_STORES:
                self._stores.clear()
            self._stores[key] = store
            return store

    @cached_property
    def _client(self) -> httpx.Client:
        logging.getLogger("httpx").addFilter(_remove_queries)
        headers = {"Accept-Encoding": "identity", "User-Agent": "prefect-bt"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        timeout = httpx.Timeout(self._limits.read, connect=self._limits.connect)
        context = _tls_context(ssl.get_default_verify_paths())
        return httpx.Client(verify=context, timeout=timeout, headers=headers)

    @contextmanager
    def _get(self, url: str, *, first_byte: bool = False) -> Generator[httpx.Response]:
        """Yield a successful answer, after redirects, with its body unread. HttpFault.

        `first_byte` requests this one only: a HEAD is often refused.
        """
        headers = {"Range": "bytes=0-0"} if first_byte else {}
        request = self._client.build_request("GET", url, headers=headers)
        for _ in range(_MAX_REDIRECTS):
            with closing(self._client.send(request, stream=True)) as answer:
                following = answer.next_request  # without the token, if it is for another host
                if following is None:
                    status = answer.status_code
                    is_empty = answer.headers.get("Content-Range") == "bytes */0"
                    if status not in (200, 206) and not (status == 416 and is_empty):
                        reason = f"the server answered {status}"
                        raise HttpFault(reason, status=status, headers=answer.headers)
                    yield answer
                    return
            if request.url.scheme == "https" != following.url.scheme:
                raise HttpFault("it leads to an address without https", FaultKind.INSECURE)
            request = following
        raise HttpFault("it redirects too often")

    @contextmanager
    def _translate_errors(self, path: str = "") -> Generator[None]:
        try:
            yield
        except (HttpFault, httpx.HTTPError, httpx.InvalidURL, *_ERRORS) as error:
            fault = error if isinstance(error, HttpFault) else self._create_fault(error)
            raise self._explain(fault, path) from None

    def _create_fault(self, error: Exception) -> HttpFault:
        text = f"{type(error).__name__} {error}"
        if status := re.search(r"\bstatus code: (\d{3})\b", text):
            return HttpFault(f"the server answered {status[1]}", status=int(status[1]))
        fault = classify_fault(error)
        if fault.kind is FaultKind.NO_RANGES or "Could not parse path" in text:  # httpx can
            return HttpFault("the server sends whole files only", FaultKind.NO_RANGES)
        if type(error) in {httpx.InvalidURL, httpx.UnsupportedProtocol, ValueError}:
            return HttpFault("it is not a URL", FaultKind.INVALID_NAME)
        return HttpFault(fault.reason or self._no_answer, fault.kind)

    def _explain(self, fault: HttpFault, path: str) -> WeightsError:
        self._stores.pop(path, None)
        at = f" at {path}" if path else ""
        what, kind, step = f"could not be read{at}", WeightsError, f"Check {self._setting}."
        if fault.is_rate_limit:
            kind, what = protocol.TransientError, "is busy"
            if fault.status == 429:
                what = f"is rate-limited{self._limit_hint}"
            after = f"in {format_elapsed(fault.retry_after)}" if fault.retry_after else "later"
            step = f"Try again {after}: downloaded files are kept."
        elif fault.is_transient:
            kind = protocol.TransientError
            step = (
                f"Check the network and {self._setting}, and try again: downloaded files are kept."
            )
        elif fault.status in (401, 403):
            step = self._access_step
        elif fault.kind is FaultKind.CLOCK:
            step = CLOCK_STEP
        elif fault.kind is FaultKind.CERTIFICATE:
            step = "Set SSL_CERT_FILE if the certificate is of your own authority."
        elif fault.kind is FaultKind.NO_RANGES:
            kind = protocol.RangesUnsupported
        error = self._error(f"{what} ({fault.reason})", step, kind)
        if isinstance(error, protocol.TransientError):
            error.retry_after = fault.retry_after
        return error


class WebSource(HttpSource):
    """One file behind a URL: `https://host/path/file`. It has the name of the URL's last part.

    It is pinned by its ETag, else by its Last-Modified, and by its length.
    """

    def list_files(self) -> Listing:
        name = unquote(urlsplit(self._source).path.rpartition("/")[2])
        if not name:
            raise self._error("names no file", "Write the URL of one file: https://host/path/file.")
        with self._translate_errors(), self._get(self._source, first_byte=True) as answer:
            tag, size = _parse_version(answer)
            no_ranges = answer.status_code == 200 and size != 0
        if not tag and size is None:
            what = "has neither ETag nor Last-Modified nor a length, so no version of it is known"
            raise self._error(what, "Fetch it in your start command instead.")
        file = ListedFile(name, size, version_tag=tag, sequential_only=no_ranges)
        return Listing(compute_revision([file]), (file,))


def _parse_version(answer: httpx.Response) -> tuple[str, int | None]:
    """Return the tag of a file, and its length if the answer contains it."""
    status, headers = answer.status_code, answer.headers
    found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    length = found[1] if found else headers.get("Content-Length", "") if status == 200 else ""
    modified = headers.get("Last-Modified", "")
    with suppress(ValueError, OverflowError):
        modified = _format_date(parsedate_to_datetime(modified))
    return headers.get("ETag") or modified, int(length) if length.isdecimal() else None


def _format_date(date: datetime) -> str:
    """Return a date as in HTTP headers; "" for the epoch, which obstore uses for no date."""
    return format_datetime(date.astimezone(UTC), usegmt=True) if date.timestamp() else ""
