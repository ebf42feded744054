"""HTTP requests for the Hub and https sources: httpx for headers and streams, obstore for blocks.

Nothing is retried here. The token is sent to the host of the first URL only, and no redirect leads
from https to http. Proxies are those of HTTP_PROXY, HTTPS_PROXY and NO_PROXY; SSL_CERT_FILE
replaces the system's certificate authorities.
"""

from __future__ import annotations

import ssl
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Final

from prefect_bt.object_store.connect import Limits, create_http_store
from prefect_bt.object_store.faults import FaultKind
from prefect_bt.weights.sources.http_faults import HttpFault, create_fault
from prefect_bt.weights.sources.protocol import CONNECT_TIMEOUT

if TYPE_CHECKING:
    import httpx
    from obstore import GetResult
    from obstore.store import HTTPStore

_MAX_REDIRECTS: Final = 10
_MAX_BLOCK_SECONDS: Final = 300.0
_PIECE_BYTES: Final = 256 << 10
"""Bytes of a body that are lost, at most, when it ends early."""


class HttpClient:
    """Client of the servers to which one source leads; used by several threads."""

    def __init__(self, token: str | None, stall_timeout: float) -> None:
        self._token, self._stall = token or "", stall_timeout
        self._connect = min(CONNECT_TIMEOUT, stall_timeout)

    @cached_property
    def _client(self) -> httpx.Client:
        import httpx

        headers = {"Accept-Encoding": "identity", "User-Agent": "prefect-bt"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        timeout = httpx.Timeout(self._stall, connect=self._connect)
        return httpx.Client(verify=ssl.create_default_context(), timeout=timeout, headers=headers)

    @contextmanager
    def get(self, url: str, *, first_byte: bool = False) -> Generator[httpx.Response]:
        """Yield a successful answer, after redirects, with its body unread. HttpFault."""
        with self.translate_errors(), closing(self._send(url, first_byte)) as answer:
            if answer.status_code not in (200, 206):
                raise HttpFault(FaultKind.OTHER, "", answer.status_code, answer.headers)
            yield answer

    def probe(self, url: str) -> httpx.Response:
        """Return the answer to a request for the first byte; a HEAD is often refused. HttpFault."""
        with self.get(url, first_byte=True) as answer:
            return answer

    def _send(self, url: str, first_byte: bool) -> httpx.Response:
        headers = {"Range": "bytes=0-0"} if first_byte else {}
        request = self._client.build_request("GET", url, headers=headers)
        for _ in range(_MAX_REDIRECTS):
            answer = self._client.send(request, stream=True)
            if answer.next_request is None:
                return answer
            answer.close()
            if request.url.scheme == "https" != answer.next_request.url.scheme:
                raise HttpFault(FaultKind.INSECURE, "it leads to an address without https")
            request = answer.next_request  # without the token, if it is for another host
        raise HttpFault(FaultKind.OTHER, "it redirects too often")

    def open_redirected(self, url: str) -> HTTPStore:
        """Open a store of the URL to which `url` redirects. HttpFault."""
        answer = self.probe(url)
        is_own = "Authorization" in answer.request.headers  # not removed by a redirect
        return self.open_store(str(answer.url), self._token if is_own else "")

    def open_store(self, url: str, token: str | None = None) -> HTTPStore:
        """Open obstore's store below `url`. HttpFault for a malformed URL."""
        token = self._token if token is None else token
        seconds = max(_MAX_BLOCK_SECONDS, 10 * self._stall)
        limits = Limits(self._connect, self._stall, seconds, retries=0)
        allow_http = url.startswith("http:")
        if not allow_http and not url.startswith("https:"):  # obstore would panic
            raise HttpFault(FaultKind.INVALID_NAME, "that is no URL")
        with self.translate_errors():
            return create_http_store(url, token=token, limits=limits, allow_http=allow_http)

    def get_block(
        self, store: HTTPStore, path: str, start: int, end: int, size: int | None
    ) -> GetResult:
        """Request bytes of a file of `size` bytes with obstore. HttpFault."""
        import obstore

        whole = end - start == size  # then a server without ranges will do
        with self.translate_errors():
            return obstore.get(store, path, options={} if whole else {"range": (start, end)})

    @contextmanager
    def translate_errors(self) -> Generator[None]:
        """Raise HttpFault for an error of httpx or obstore, or a malformed URL."""
        import httpx
        from obstore.exceptions import BaseError

        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL, BaseError, OSError, ValueError) as error:
            raise create_fault(error, self._connect, self._stall) from None


def iter_block(answer: GetResult, length: int) -> Iterator[memoryview]:
    """Yield the body in pieces, and nothing beyond `length` bytes.

    `GetResult.bytes` is not faster, and holds in memory whatever the server sends.
    """
    for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
        yield memoryview(piece)[:length]
        length -= len(piece)
        if length < 0:  # at 0 the loop goes on to the end, so that the connection is kept
            return
