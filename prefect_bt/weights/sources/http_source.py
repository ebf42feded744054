"""Sources over HTTP: obstore reads blocks; httpx reads whole files, pages and headers.

Nothing is retried here. The token is sent to the host of the first URL only, and no redirect leads
from https to http. Proxies are those of HTTP_PROXY, HTTPS_PROXY and NO_PROXY; SSL_CERT_FILE
replaces the system's certificate authorities.
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
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final, Self

from prefect_bt.errors import WeightsError
from prefect_bt.object_store.connect import Limits, create_http_store
from prefect_bt.object_store.faults import FaultKind, classify_fault
from prefect_bt.weights.sources.file_listing import ListedFile
from prefect_bt.weights.sources.protocol import (
    STALL_TIMEOUT,
    RangesUnsupported,
    SourceRequest,
    TransientError,
)
from prefect_bt.weights.sources.secret_fields import parse_token

if TYPE_CHECKING:
    import httpx
    from obstore import GetOptions, GetResult
    from obstore.store import HTTPStore

_CONNECT_TIMEOUT: Final = 10.0
_MAX_RETRY_AFTER: Final = 60.0
_MAX_REDIRECTS: Final = 10
_MAX_TARGETS: Final = 8
_MAX_BLOCK_SECONDS: Final = 300.0
_PIECE_BYTES: Final = 256 << 10
"""Bytes of a body that are lost, at most, when it ends early."""
_NO_RANGES: Final = "the server sends whole files only"
_RETRYABLE_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_RESET: Final = re.compile(r"\bt=(\d+)")
_CONTENT_RANGE: Final = re.compile(r"bytes (?:\d+-\d+|\*)/(\d{1,18}|\*)")


class _QueryFilter(logging.Filter):
    """Removes queries, which can be signatures, from httpx's lines about requests."""

    def filter(self, record: logging.LogRecord) -> bool:
        import httpx

        if isinstance(record.args, tuple):
            shown = (
                a.copy_with(query=None) if isinstance(a, httpx.URL) else a for a in record.args
            )
            record.args = tuple(shown)
        return True


_QUERY_FILTER: Final = _QueryFilter()


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
        """Seconds that the server asks to wait, up to a limit."""
        value, seconds = self.headers.get("Retry-After", "").strip(), 0.0
        if value.isdecimal():
            seconds = float(value)
        elif value:
            with suppress(ValueError, OverflowError):
                seconds = parsedate_to_datetime(value).timestamp() - time.time()
        elif self.status == 429 and (reset := _RESET.search(self.headers.get("RateLimit", ""))):
            seconds = float(reset[1])
        return min(max(seconds, 0.0), _MAX_RETRY_AFTER)


class HttpSource:
    """A source whose files are read over HTTP; used by several threads."""

    detects_changes = True
    _setting: ClassVar = "the URL"
    """What contains the server's address, for messages."""

    def __init__(self, source: str, token: str, *, stall_timeout: float = STALL_TIMEOUT) -> None:
        self._source, self._shown = source, source.partition("?")[0]
        self._token, self._stall = token, stall_timeout
        self._connect = min(_CONNECT_TIMEOUT, stall_timeout)
        self._targets: dict[str, HTTPStore] = {}
        """File -> store of the URL to which its own URL redirects."""
        self._lock = threading.Lock()

    @classmethod
    def open(cls, request: SourceRequest) -> Self:
        token = parse_token(request.plan, request.secret) if request.secret else ""
        return cls(request.plan.source, token, stall_timeout=request.stall_timeout)

    def read(self, file: ListedFile, *, start: int, length: int) -> Iterator[bytes | memoryview]:
        if not length or file.size == 0:
            return
        with self._translate_errors(file.path):
            # obstore would send the token again where a second redirect stays on another host.
            if start == 0 and (length < 0 or (self._token and length == file.size)):
                with self._get(self._file_url(file)) as answer:
                    self._check_version(file, *parse_version(answer.status_code, answer.headers))
                    yield from answer.iter_raw()
                return
            end = (file.size or 0) if length < 0 else start + length
            block = self._get_block(file, start, end)
            tag = block.meta["e_tag"] or _format_date(block.meta["last_modified"])
            self._check_version(file, tag, block.meta["size"])
            # `GetResult.bytes` is not faster, and holds in memory whatever the server sends.
            left = end - start
            for piece in block.stream(min_chunk_size=_PIECE_BYTES):
                yield memoryview(piece)[:left]
                left -= len(piece)
                if left < 0:  # at 0 the loop ends the body, so that the connection is kept
                    return

    def _file_url(self, file: ListedFile) -> str:
        return self._source

    def _check_version(self, file: ListedFile, tag: str, size: int | None) -> None:
        if tag != (file.version_tag or tag) or size not in {file.size, None}:
            raise self._error("changed while it was read", "Push again when nothing writes there.")

    def _get_block(self, file: ListedFile, start: int, end: int) -> GetResult:
        import obstore
        from obstore.exceptions import BaseError

        whole = (start, end) == (0, file.size)  # then a server without ranges will do
        options: GetOptions = {} if whole else {"range": (start, end)}
        store, path = self._locate(file, whole=whole)
        try:
            return obstore.get(store, path, options=options)
        except (BaseError, OSError, ValueError) as error:
            fault = self._create_fault(error)
            if not fault.status:
                raise
        # httpx shows the reason and Retry-After, obstore does not. A signed URL may be expired.
        if self._targets.get(file.path) is store:
            self._targets.pop(file.path, None)
        store = self._open_target(file)
        if fault.is_transient:
            raise fault
        return obstore.get(store, "", options=options)

    def _locate(self, file: ListedFile, *, whole: bool) -> tuple[HTTPStore, str]:
        """Return the store and the path of a file, which is read as a whole or in blocks."""
        return self._open_target(file), ""

    def _open_target(self, file: ListedFile) -> HTTPStore:
        """Open a store of the URL to which the file's URL redirects, once for all its blocks."""
        with self._lock:
            store = self._targets.get(file.path)
            if store is None:
                with self._get(self._file_url(file), first_byte=True) as answer:
                    # All redirects kept it. For https://user:password@host httpx sends another.
                    sent = answer.request.headers.get("Authorization")
                    is_own = sent == f"Bearer {self._token}"
                store = self._open_store(str(answer.url), self._token if is_own else "")
                if len(self._targets) >= _MAX_TARGETS:
                    self._targets.clear()
                self._targets[file.path] = store
            return store

    def _open_store(self, url: str, token: str) -> HTTPStore:
        seconds = max(_MAX_BLOCK_SECONDS, 10 * self._stall)
        limits = Limits(self._connect, self._stall, seconds, retries=0)
        allow_http = url.startswith("http:")
        if not allow_http and not url.startswith("https:"):  # obstore would panic
            raise HttpFault("that is no URL", FaultKind.INVALID_NAME)
        return create_http_store(url, token=token, limits=limits, allow_http=allow_http)

    @cached_property
    def _client(self) -> httpx.Client:
        import httpx

        logging.getLogger("httpx").addFilter(_QUERY_FILTER)
        headers = {"Accept-Encoding": "identity", "User-Agent": "prefect-bt"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        timeout = httpx.Timeout(self._stall, connect=self._connect)
        context = ssl.create_default_context()
        # Python 3.13 refuses private authorities without a key identifier; obstore accepts them.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
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
                    if answer.status_code not in (200, 206):
                        raise _status_fault(answer.status_code, answer.headers)
                    yield answer
                    return
            if request.url.scheme == "https" != following.url.scheme:
                raise HttpFault("it leads to an address without https", FaultKind.INSECURE)
            request = following
        raise HttpFault("it redirects too often")

    @contextmanager
    def _translate_errors(self, path: str = "") -> Generator[None]:
        import httpx
        from obstore.exceptions import BaseError

        try:
            yield
        except HttpFault as fault:
            raise self._explain(fault, path) from None
        except (httpx.HTTPError, httpx.InvalidURL, BaseError, OSError, ValueError) as error:
            raise self._explain(self._create_fault(error), path) from None

    def _create_fault(self, error: Exception) -> HttpFault:
        text = f"{type(error).__name__} {error}"
        if status := re.search(r"\bstatus code: (\d{3})\b", text):
            return _status_fault(int(status[1]))
        if "Could not parse path" in text:  # of obstore; httpx can
            return HttpFault(_NO_RANGES, FaultKind.NO_RANGES)
        if re.match("InvalidURL|UnsupportedProtocol|ValueError", text):
            return HttpFault("that is no URL", FaultKind.INVALID_NAME)
        if "Timeout" in text:
            limits = f"no connection in {self._connect:g} s, or no byte for {self._stall:g} s"
            return HttpFault(limits, FaultKind.UNREACHABLE)
        fault = classify_fault(error)
        default = _NO_RANGES if fault.kind is FaultKind.NO_RANGES else "it sent no usable answer"
        return HttpFault(fault.reason or default, fault.kind)

    def _explain(self, fault: HttpFault, path: str) -> WeightsError:
        self._targets.pop(path, None)
        kind, step = WeightsError, f"Check {self._setting}."
        if fault.is_transient:
            kind = TransientError
            step = f"Check the network and {self._setting}, and push again: what is here is kept."
        elif fault.status in (401, 403):
            step = self._access_step
        elif fault.kind is FaultKind.CERTIFICATE:
            step = "Set SSL_CERT_FILE if the certificate is of your own authority."
        elif fault.kind is FaultKind.NO_RANGES:
            kind = RangesUnsupported
        message = f"{self._describe(path)} ({fault.reason})."
        error = kind(message, source=self._source, next_step=step)
        if isinstance(error, TransientError):
            error.retry_after = fault.retry_after
        return error

    @property
    def _access_step(self) -> str:
        valid = "Check that its token is valid and may read it."
        return valid if self._token else "Give auth with a token that may read it."

    def _describe(self, path: str) -> str:
        """Return the beginning of the sentence about a fault."""
        return f"{self._shown} could not be read"

    def _error(self, message: str, next_step: str) -> WeightsError:
        return WeightsError(f"{self._shown} {message}.", source=self._source, next_step=next_step)


def parse_version(status: int, headers: Mapping[str, str]) -> tuple[str, int | None]:
    """Return the tag of a file, and its length if the answer contains it."""
    found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    length = found[1] if found else headers.get("Content-Length", "") if status == 200 else ""
    modified = headers.get("Last-Modified", "")
    with suppress(ValueError, OverflowError):
        modified = _format_date(parsedate_to_datetime(modified))
    return headers.get("ETag") or modified, int(length) if length.isdecimal() else None


def _format_date(date: datetime) -> str:
    """Return a date as in HTTP headers; "" for the epoch, which obstore uses for no date."""
    return format_datetime(date.astimezone(UTC), usegmt=True) if date.timestamp() else ""


def _status_fault(status: int, headers: Mapping[str, str] | None = None) -> HttpFault:
    reason = f"the server answered {status}"
    return HttpFault(reason, status=status, headers=headers or {})
