"""Serve `/metrics` for Prometheus in threads of this process."""

from __future__ import annotations

import re
import socket
from typing import Final

from prefect_bt.errors import ServerError, UsageError
from prefect_bt.settings import Settings

_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\[\]:/\s]+):(\d{1,5})")


def parse_listen_address(text: str) -> tuple[str, int]:
    """Return host and port of `127.0.0.1:9464` or `[::1]:9464`. UsageError."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match[2]) > 65535:
        raise UsageError(
            f"{text!r} is no address to serve metrics at.",
            next_step="Give a host and a port: PREFECT_BT_METRICS_LISTEN=127.0.0.1:9464",
        )
    return match[1].strip("[]"), int(match[2])


def check_address(text: str) -> None:
    """Raise ServerError if nothing can listen there, UsageError if it is no address."""
    host, port = parse_listen_address(text)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise _cannot_listen(text, error) from error


def serve_metrics(address: str) -> int:
    """Serve the metrics from now on; return the port. Raises ServerError and UsageError."""
    from prometheus_client import CollectorRegistry, start_http_server

    from prefect_bt.open_metrics.collector import JobCollector
    from prefect_bt.open_metrics.store_values import StoreReader

    host, port = parse_listen_address(address)
    state_dir, registry = Settings().state_dir, CollectorRegistry()
    registry.register(JobCollector(state_dir, StoreReader(state_dir)))
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise _cannot_listen(address, error) from error
    return server.server_port


def _cannot_listen(address: str, error: OSError) -> ServerError:
    return ServerError(
        f"Metrics cannot be served at {address}: {error.strerror or error}.",
        next_step="Choose another address: PREFECT_BT_METRICS_LISTEN=127.0.0.1:9465",
    )
