"""Bodies over HTTP: kept connections, redirects, and an end to those that send nothing.

A token goes to the host that was asked first, never to where that redirects; from https nothing
leads back to http. Proxies and certificates are the environment's: HTTPS_PROXY, NO_PROXY,
SSL_CERT_FILE. Nothing is tried again here, but for a kept connection that the server had closed.
"""

from __future__ import annotations

import re
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urljoin, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import HTTPError, IncompleteRead, ProtocolError, ReadTimeoutError
from urllib3.exceptions import TimeoutError as HTTPTimeout
from urllib3.util import parse_url

from prefect_bt.weights.sources.protocol import CONNECT_TIMEOUT, STALL_TIMEOUT

POOL_SIZE: Final = 32
"""Connections to one host that are kept for the next request."""
MAX_RETRY_AFTER: Final = 60.0
"""Seconds; a server that asks for more is asked again nevertheless."""
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS: Final = 10
_CHUNK_BYTES: Final = 256 << 10
_CONTENT_RANGE: Final = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")
_RESET: Final = re.compile(r"\bt=(\d+)")


class ConnectionLost(Exception):
    """The connection was not to be had, or ended.

    `reason` is a part of a sentence, without a URL.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class CertificateError(Exception):
    """The server's certificate is not trusted; `reason` is OpenSSL's reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class InsecureRedirect(Exception):
    """Redirected from https to a URL of another scheme."""


class Response:
    """An answer whose body may be read once. `url` is where it came from, after redirects."""

    def __init__(self, response: urllib3.BaseHTTPResponse, url: str, stall_timeout: float) -> None:
        self._response, self._stall = response, stall_timeout
        self.url = url
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers

    @property
    def range_start(self) -> int:
        """Which byte of the file the body begins with."""
        told = _CONTENT_RANGE.fullmatch(self.headers.get("Content-Range", ""))
        return int(told[1]) if self.status == 206 and told and told[1] else 0

    @property
    def total_bytes(self) -> int | None:
        """The whole file's length, as far as the answer tells."""
        told = _CONTENT_RANGE.fullmatch(self.headers.get("Content-Range", ""))
        if told:
            return int(told[2]) if told[2] != "*" else None
        length = self.headers.get("Content-Length", "")
        return int(length) if self.status == 200 and length.isdecimal() else None

    @property
    def retry_after(self) -> float:
        """Seconds for which the server asks to be left alone; at most LONGEST_WAIT."""
        told = self.headers.get("Retry-After", "").strip()
        seconds = 0.0
        if told.isdecimal():
            seconds = float(told)
        elif told:
            with suppress(ValueError, OverflowError):
                seconds = parsedate_to_datetime(told).timestamp() - time.time()
        elif self.status == 429 and (reset := _RESET.search(self.headers.get("RateLimit", ""))):
            seconds = float(reset[1])
        return min(max(seconds, 0.0), MAX_RETRY_AFTER)

    def iter_chunks(self) -> Iterator[bytes]:
        """The body in pieces. Lost; what came last before it may be lost too, up to a piece."""
        while piece := self._read_chunk():
            yield piece

    def _read_chunk(self) -> bytes:
        """Small enough for its memory to stay in the processor's cache: half the work of 1 MiB."""
        try:
            return self._response.read(_CHUNK_BYTES, decode_content=False)
        except (HTTPError, OSError) as error:
            raise ConnectionLost(_reason(error, self._stall)) from None

    def close(self) -> None:
        """The connection is kept when the body was read to its end."""
        response = self._response
        if response.length_remaining == 0:
            with suppress(HTTPError, OSError):
                response.read1(1)  # so that http.client notices
                response.release_conn()
                return
        response.close()


class HttpClient:
    """To whatever hosts one source leads; used by several threads."""

    def __init__(self, *, stall_timeout: float = STALL_TIMEOUT) -> None:
        self.stall_timeout = stall_timeout
        self._managers: dict[tuple[str, str], urllib3.PoolManager] = {}
        """By scheme and host, and by scheme and proxy."""
        self._lock = threading.Lock()

    def get(
        self, url: str, headers: Mapping[str, str], origin_headers: Mapping[str, str] | None = None
    ) -> Response:
        """The answer, whatever its status, after redirects. Close it.

        `origin_headers` headers go to the host of `url` alone. Lost, Untrusted, LeavesHttps;
        ValueError for what is no URL.
        """
        first = origin(url)
        for _ in range(_MAX_REDIRECTS):
            origin_headers = origin_headers if origin_headers and origin(url) == first else {}
            answer = Response(
                self._send(url, {**headers, **origin_headers}), url, self.stall_timeout
            )
            target = answer.headers.get("Location")
            if answer.status not in _REDIRECTS or not target:
                return answer
            answer.close()
            url, before = urljoin(url, target), url
            if urlsplit(before).scheme == "https" != urlsplit(url).scheme:
                raise InsecureRedirect
        raise ConnectionLost("redirected without an end")

    def _send(self, url: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"{parts.scheme}:// is not fetched")
        try:
            manager = self._manager(parts)
            try:
                return self._request(manager, url, headers)
            except ProtocolError:  # closed between two requests, most often
                return self._request(manager, url, headers)
        except (HTTPError, OSError) as error:
            if isinstance(reason := _root_cause(error), ssl.SSLCertVerificationError):
                raise CertificateError(reason.verify_message) from None
            raise ConnectionLost(_reason(error, self.stall_timeout)) from None

    def _request(
        self, manager: urllib3.PoolManager, url: str, headers: Mapping[str, str]
    ) -> urllib3.BaseHTTPResponse:
        return manager.request(
            "GET",
            url,
            headers=headers,
            redirect=False,
            retries=False,
            preload_content=False,
            decode_content=False,
            timeout=urllib3.Timeout(
                connect=min(CONNECT_TIMEOUT, self.stall_timeout), read=self.stall_timeout
            ),
        )

    def _manager(self, parts: SplitResult) -> urllib3.PoolManager:
        where = (parts.scheme, parts.netloc)
        with self._lock:
            if where not in self._managers:
                key = (parts.scheme, _proxy_for(parts))
                if key not in self._managers:
                    self._managers[key] = _new_manager(key[1], parts.scheme)
                self._managers[where] = self._managers[key]
            return self._managers[where]


def _new_manager(proxy: str, scheme: str) -> urllib3.PoolManager:
    options: dict[str, Any] = {"num_pools": 8, "maxsize": POOL_SIZE}
    if scheme == "https":
        options["ssl_context"] = _create_ssl_context()
    if not proxy:
        return urllib3.PoolManager(**options)
    parts = urlsplit(proxy)
    if parts.username:
        given = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        options["proxy_headers"] = urllib3.make_headers(proxy_basic_auth=given)
        proxy = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return urllib3.ProxyManager(proxy, **options)


def _create_ssl_context() -> ssl.SSLContext:
    """The system's authorities, or SSL_CERT_FILE's; certifi's where the system has none."""
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if not (paths.cafile or paths.capath or context.cert_store_stats()["x509_ca"]):
        with suppress(ImportError):
            import certifi

            context.load_verify_locations(certifi.where())
    return context


def _proxy_for(parts: SplitResult) -> str:
    """The proxy's URL; "" for none."""
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all") or ""
    if not proxy or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def origin(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port. ValueError for what is no URL.

    They are urllib3's, which connects to them: urlsplit finds another host in `http://a\\@b/`.
    """
    parts = parse_url(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme or "", parts.host or "", port


def _root_cause(error: BaseException) -> BaseException:
    """What urllib3 wraps, sometimes twice."""
    while True:
        inner = next((a for a in error.args if isinstance(a, BaseException)), None)
        if inner is None:
            inner = error.__cause__
        if inner is None:
            return error
        error = inner


def _reason(error: BaseException, stall: float) -> str:
    inner = _root_cause(error)
    if isinstance(error, ReadTimeoutError):
        return f"no byte for {stall:g} s"
    if isinstance(inner, IncompleteRead):
        return "the body ended early"
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror
    if isinstance(error, HTTPTimeout) or isinstance(inner, TimeoutError):
        return f"no connection within {min(CONNECT_TIMEOUT, stall):g} s"
    return type(inner).__name__
