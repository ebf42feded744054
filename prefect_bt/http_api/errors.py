"""Answers to requests that fail: `{"message": ...}`, of which clients print the message."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, cast

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from prefect_bt.errors import (
    AcceptedJobError,
    AmbiguousError,
    IdentityError,
    InvalidKey,
    NotFoundError,
    PrefectBtError,
    ServerError,
    StateError,
    StoreError,
    SubstrateError,
)
from prefect_bt.http_api.access import ForbiddenError, UnauthorizedError
from prefect_bt.text.control_characters import escape_controls

if TYPE_CHECKING:
    from fastapi import FastAPI, Request

_LOGGER: Final = logging.getLogger(__name__)
_STATUSES: Final = (
    (AcceptedJobError, 500),  # clients may repeat a request after 503
    (UnauthorizedError, 401),
    (ForbiddenError, 403),
    (NotFoundError, 404),
    (InvalidKey, 400),
    (StateError, 409),
    (AmbiguousError, 409),
    (IdentityError, 503),
    (ServerError, 503),
    (StoreError, 503),
    (SubstrateError, 503),
)
"""Class of an error -> status; the first that fits. Any other error is the request's: 400."""


def error_response(error: PrefectBtError) -> JSONResponse:
    """Return the answer to a request that raised `error`."""
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 400)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if isinstance(error, StoreError) and status == 503:
        headers["Retry-After"] = "1"
    return JSONResponse({"message": escape_controls(str(error))}, status, headers=headers)


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error of a route with a message."""

    async def answer_ours(_: Request, error: Exception) -> JSONResponse:
        return error_response(cast("PrefectBtError", error))

    async def answer_http(_: Request, error: Exception) -> JSONResponse:
        error = cast("HTTPException", error)
        return JSONResponse({"message": error.detail}, error.status_code, headers=error.headers)

    async def answer_invalid(_: Request, error: Exception) -> JSONResponse:
        problems = cast("RequestValidationError", error).errors()
        return JSONResponse({"message": "; ".join(map(_format_problem, problems))}, 400)

    async def answer_unexpected(request: Request, error: Exception) -> JSONResponse:
        _LOGGER.error("%s %s failed.", request.method, request.url.path, exc_info=error)
        return JSONResponse({"message": "The server failed; its log says why."}, 500)

    app.add_exception_handler(PrefectBtError, answer_ours)
    app.add_exception_handler(HTTPException, answer_http)
    app.add_exception_handler(RequestValidationError, answer_invalid)
    app.add_exception_handler(Exception, answer_unexpected)


def _format_problem(problem: dict[str, Any]) -> str:
    field = ".".join(str(part) for part in problem["loc"] if part != "body")
    return f"{field or 'The body'}: {problem['msg']}"
