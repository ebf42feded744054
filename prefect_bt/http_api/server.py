"""Run the server of the API in this process."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn

from prefect_bt.errors import ServerError
from prefect_bt.host.service import is_loopback
from prefect_bt.http_api.app import create_app, open_site
from prefect_bt.http_api.middleware import REST_NAME
from prefect_bt.job_service.remotes import TRUSS_URL

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8000
_BACKLOG: Final = 512
_SHUTDOWN_SECONDS: Final = 10
_HEAD_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class Listen:
    """The address of the server; with a certificate it speaks TLS only."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    certificate: Path | None = None
    private_key: Path | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.certificate else ''}://{host}:{self.port}"


def serve(listen: Listen, *, echo: Callable[[str], object]) -> None:
    """Serve the settings' store until SIGTERM or Ctrl-C. ServerError, StoreError."""
    site = open_site()
    sockets = _open_sockets(listen)
    app = create_app(site)
    config = uvicorn.Config(
        app,
        http="h11",  # httptools drops the host of an absolute URI
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=_HEAD_BYTES,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        ssl_certfile=listen.certificate,
        ssl_keyfile=listen.private_key,
    )
    try:
        config.load()
    except OSError as error:
        raise ServerError(
            f"The certificate {listen.certificate} cannot be used: {error}.",
            next_step="Give PEM files that belong together: --certificate and --private-key.",
        ) from error
    echo(f"The Training API of {site.ledger.store.url} is at {listen.url}; Ctrl-C stops it.")
    for line in describe_use(listen):
        echo(line)
    server = uvicorn.Server(config)
    app.state.is_stopping = lambda: server.should_exit
    server.run(sockets=list(sockets))


def describe_use(listen: Listen) -> list[str]:
    """Return how clients reach the server, and what is missing for them."""
    lines = ["  Key:     prefect-bt api-key create NAME --trussrc REMOTE"]
    if not listen.certificate:
        lines.append("  truss:   prefect-bt truss -- train push config.py --remote REMOTE")
    if listen.url == f"http://{DEFAULT_HOST}:{DEFAULT_PORT}" and not _resolves(REST_NAME):
        lines.append(
            f"  For truss alone with {TRUSS_URL}, /etc/hosts needs: {DEFAULT_HOST} {REST_NAME}"
        )
    if not (listen.certificate or is_loopback(listen.host)):
        lines.append(
            "Warning: keys and files travel unencrypted. Use an SSH tunnel, or --certificate."
        )
    return lines


def _open_sockets(listen: Listen) -> Sequence[socket.socket]:
    """Return the listening sockets; for the loopback address those of both families."""
    host, port = listen.host, listen.port
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sockets = [socket.create_server((host, port), family=family, backlog=_BACKLOG)]
    except OSError as error:
        raise ServerError(
            f"The API cannot listen at {listen.url}: {error.strerror or error}.",
            next_step=f"Choose another port: prefect-bt api --port {port + 1}",
        ) from error
    if host == DEFAULT_HOST:
        with suppress(OSError):  # a machine without IPv6
            sockets.append(
                socket.create_server(("::1", port), family=socket.AF_INET6, backlog=_BACKLOG)
            )
    for one in sockets:  # accepted ones inherit it; without, each answer waits 40 ms for an ACK
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sockets


def _resolves(name: str) -> bool:
    with suppress(OSError):
        return any(is_loopback(str(found[4][0])) for found in socket.getaddrinfo(name, None))
    return False
