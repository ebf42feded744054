"""Requests that the router itself answers with an error, in the format of OpenAI's API."""

from __future__ import annotations

from typing import Final

from aiohttp import web

RETRY_AFTER: Final = 5
"""Seconds after which a client should try again."""


class Rejected(Exception):
    """The answer to a request that is not passed on, or was not answered.

    `closes`: whether the connection ends, because the rest of the body is not read.
    """

    def __init__(self, status: int, code: str, message: str, *, closes: bool = False) -> None:
        super().__init__(message)
        self.status, self.code, self.closes = status, code, closes

    @property
    def response(self) -> web.Response:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": str(self), "type": kind, "param": None, "code": self.code}
        response = web.json_response({"error": error}, status=self.status)
        if self.status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        if self.status == 503:
            response.headers["Retry-After"] = str(RETRY_AFTER)
        if self.closes:
            response.force_close()
        return response


def not_supported(status: int, message: str) -> Rejected:
    return Rejected(status, "not_supported", message)


def upstream_lost(target: str) -> Rejected:
    return Rejected(
        502,
        "upstream_lost",
        f"The server at {target} closed the connection before its answer was complete. The "
        "request may have reached the model, so it was not sent again. Send it again if "
        "repeating it is harmless.",
    )
