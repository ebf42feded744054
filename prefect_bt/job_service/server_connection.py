"""Requests to a server of the HTTP API, and its errors as ours.

Requests that change nothing are sent again after a failed connection. Redirects are not followed,
and no proxy is used, so that the key goes to no other host. `http.client` is used because the
import of httpx takes longer than a request.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast
from urllib.parse import quote, urlencode, urlsplit

from prefect_bt.errors import (
    NotFoundError,
    PrefectBtError,
    ServerError,
    StateError,
    StoreError,
    UsageError,
)
from prefect_bt.job_service.remotes import Server

if TYPE_CHECKING:
    from socket import socket

_CONNECT_TIMEOUT: Final = 10.0
_READ_TIMEOUT: Final = 60.0
_WORK_TIMEOUT: Final = 1200.0
"""Seconds for the answer to a request with effects: the server may store a large workspace."""
_MAX_IDLE: Final = 3.0
"""Seconds after which a connection is not used again: the server closes it then."""
_REPEAT_DELAYS: Final = (0.5, 2.0)
"""Seconds before each repeat of a request without effects."""
FAILED: Final = (OSError, HTTPException)
"""Errors of a connection."""


class RemoteNotFound(NotFoundError):
    """A job, project or checkpoint that the server does not know, in its words."""

    def __init__(self, message: str) -> None:
        PrefectBtError.__init__(self, message)


class Connection:
    """Sends requests with the key of the server, in any thread."""

    def __init__(self, server: Server) -> None:
        self._server, self._sockets = server, _Sockets(server.url)

    def send(self, method: str, path: str, params: dict[str, Any], **sent: Any) -> bytes:
        delays = iter(_REPEAT_DELAYS if method == "GET" else ())
        while True:
            try:
                return self.open(method, path, params, **sent).read()
            except FAILED as error:
                self._sockets.close()
                if (delay := next(delays, None)) is None:
                    raise self.unreachable(error, repeatable=method in {"GET", "PUT"}) from error
                time.sleep(delay)

    def open(
        self,
        method: str,
        path: str,
        params: dict[str, Any],
        *,
        body: bytes | Iterable[bytes] | None = None,
        size: int = 0,
    ) -> HTTPResponse:
        """Send a request, and return its answer. OSError, HTTPException, or the server's error."""
        given = {name: value for name, value in params.items() if value is not None}
        where = f"{urlsplit(self._server.url).path}/prefect-bt/v1/{quote(path)}"
        target = f"{where}?{urlencode(given, doseq=True)}"
        headers = {"Authorization": f"Api-Key {self._server.key}"}
        if body is not None:
            headers |= {"Content-Length": str(size), "Content-Type": "application/json"}
        connection = self._sockets.get(is_new=method != "GET")
        connection.request(method, target, body, headers)
        if method != "GET":
            cast("socket", connection.sock).settimeout(_WORK_TIMEOUT)
        answer = connection.getresponse()
        if answer.status != 200:
            self._raise_refusal(answer.status, answer.read())
        return answer

    def unreachable(self, error: Exception, *, repeatable: bool = True) -> StoreError:
        view = f"`prefect-bt view{self._server.option}`"
        look = "" if repeatable else f" Before you repeat it, see {view}: it may have been done."
        return StoreError(
            f"The server {self._server.url} of {self._server.origin} does not answer: {error!r}.",
            next_step=f"Check its address and that `prefect-bt api` runs there.{look}",
            url=self._server.url,
        )

    def _raise_refusal(self, status: int, body: bytes) -> NoReturn:
        try:
            message = self._server.add_option(str(json.loads(body)["message"]))
        except (ValueError, LookupError, TypeError):
            message = ""
        if not message or (status, message) == (404, HTTPStatus.NOT_FOUND.phrase):  # of no route
            reason = f"{self._server.url} answers {status} and no message of prefect-bt"
            raise ServerError(
                f"{reason}, so it is not the URL of a server of prefect-bt.",
                next_step=f"Correct the URL of {self._server.origin}.",
            )
        if status in {401, 403}:
            raise UsageError(f"{self._server.origin} refuses the key: {message}")
        if status == 404:
            raise RemoteNotFound(message)
        if status == 409:
            raise StateError(message, state="")
        if status >= 500:
            raise StoreError(message, url=self._server.url)
        raise PrefectBtError(message)

    def close(self) -> None:
        """Close the connection of this thread."""
        self._sockets.close()


class _Sockets(threading.local):
    """A connection for each thread."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        make = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._connection = make(parts.netloc, timeout=_CONNECT_TIMEOUT)
        self._used = 0.0

    def get(self, *, is_new: bool) -> HTTPConnection:
        """Return a connection that is open."""
        connection, now = self._connection, time.monotonic()
        if is_new or connection.sock is None or now - self._used > _MAX_IDLE:
            connection.close()
            connection.connect()
        cast("socket", connection.sock).settimeout(_READ_TIMEOUT)
        self._used = now
        return connection

    def close(self) -> None:
        self._connection.close()
