"""Port of the server of `prefect-bt up`, which is bound before the server starts.

A server needs seconds until it listens. Another user who bound the port meanwhile would receive the
password, so `up` binds the port and passes the listening socket on.
"""

from __future__ import annotations

import socket
import urllib.request

from prefect_bt.errors import ServerError
from prefect_bt.local_server.app import HOST


def open_listening_socket(port: int) -> socket.socket:
    """Return a socket that listens at the port. ServerError when another program has it."""
    try:
        return socket.create_server((HOST, port), backlog=2048)
    except OSError as error:
        url = f"http://{HOST}:{port}"
        other = f"Use another port: prefect-bt up --port {port + 1}"
        if is_healthy(f"{url}/api"):
            raise ServerError(
                f"Another Prefect server, which `prefect-bt up` did not start, answers at {url}.",
                next_step=f"{other}; or use that server, if it is yours: "
                f"export PREFECT_API_URL={url}/api",
            ) from error
        raise ServerError(
            f"Port {port} is taken by another program.",
            next_step=f"{other}, or set PREFECT_BT_SERVER_PORT.",
        ) from error


def is_healthy(api_url: str) -> bool:
    """Return whether a Prefect server answers at `api_url`."""
    return answers(f"{api_url}/health", b"true")


def answers(url: str, expected: bytes) -> bool:
    """Return whether a server on this machine answers at `url` with these bytes."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=2) as answer:
            return answer.status == 200 and answer.read() == expected
    except OSError:
        return False
