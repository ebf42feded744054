"""Answers of the router itself, in the shape that clients of OpenAI's API know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from prefect_bt.serving.router.body_limits import RejectionReason

RETRY_AFTER: Final = 5
"""Seconds that a client is asked to wait."""


def error_response(
    status: int, message: str, *, kind: str, code: str, headers: Mapping[str, str] | None = None
) -> web.Response:
    error = {"message": message, "type": kind, "param": None, "code": code}
    return web.json_response({"error": error}, status=status, headers=headers)


def invalid_api_key(name: str, *, has_key: bool) -> web.Response:
    what = "This is not the API key" if has_key else "No API key was sent"
    return error_response(
        401,
        f"{what} of deployment {name!r}. Send it as `Authorization: Bearer KEY`.",
        kind="invalid_request_error",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def key_unreadable() -> web.Response:
    return error_response(
        503,
        "The file with this deployment's API key cannot be read, so all requests are "
        "refused. Set the key again.",
        kind="server_error",
        code="key_unreadable",
    )


def no_upstream(name: str, *, waited: float, refused_by: str) -> web.Response:
    """`refused_by`: the target that did not accept; "" when there was none."""
    why = f"its server at {refused_by} accepts no connection" if refused_by else "it has no route"
    return _unavailable(
        f"Deployment {name!r} does not answer: {why}, and did not within {waited:.0f} s. "
        "Try again later, or look at its log.",
        code="no_upstream",
    )


def router_stopping(name: str) -> web.Response:
    return _unavailable(
        f"The router of deployment {name!r} is being stopped. Try again later.", code="stopping"
    )


def _unavailable(message: str, *, code: str) -> web.Response:
    headers = {"Retry-After": str(RETRY_AFTER)}
    return error_response(503, message, kind="server_error", code=code, headers=headers)


def body_rejected(reason: RejectionReason, *, max_bytes: int) -> web.Response:
    """Return a refusal that ends the connection: the rest of the body is not read."""
    refused = _body_rejection(reason, max_bytes)
    refused.force_close()
    return refused


def _body_rejection(reason: RejectionReason, max_bytes: int) -> web.Response:
    if reason is RejectionReason.MEMORY:
        return _unavailable(
            "The router already holds the maximum number of large requests. Try again later.",
            code="busy",
        )
    status, what, code = {
        RejectionReason.TOO_LARGE: (
            413,
            f"The body of the request is larger than {max_bytes} bytes. Send less, or raise "
            "the limit of the deployment (PREFECT_BT_REQUEST_BYTES).",
            "request_too_large",
        ),
        RejectionReason.TOO_SLOW: (
            408,
            "The body of the request did not come in time.",
            "request_timeout",
        ),
    }.get(reason, (400, "The body of the request is not valid HTTP.", "malformed_body"))
    return error_response(status, what, kind="invalid_request_error", code=code)


def upstream_lost(target: str) -> web.Response:
    return error_response(
        502,
        f"The server at {target} closed the connection before its answer was complete. The "
        "request may have reached the model, so it was not sent again. Send it again if "
        "repeating it is harmless.",
        kind="server_error",
        code="upstream_lost",
    )


def upstream_invalid(target: str) -> web.Response:
    return error_response(
        502,
        f"The answer of the server at {target} is not HTTP. See its log.",
        kind="server_error",
        code="upstream_invalid",
    )


def not_supported(status: int, message: str) -> web.Response:
    return error_response(status, message, kind="invalid_request_error", code="not_supported")
