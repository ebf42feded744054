"""The router's process: its port, its start where none answers, its status, its stop."""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prefect_bt.errors import ServerError
from prefect_bt.host.service import (
    LOOPBACK,
    STOP_TIMEOUT,
    fetch_json,
    start_process,
    wait_until_ready,
)
from prefect_bt.serving.router.deployment_folder import ListenAddress, RouterFolder

WAIT_TIMEOUT: Final = 60.0
"""Seconds that a request waits for a server that accepts it."""
SHUTDOWN_GRACE_SECONDS: Final = 30.0
"""Seconds that requests in flight have when the router is stopped."""
STATUS_PATH: Final = "/_router/status"
FIRST_PORT: Final = 19000
LAST_PORT: Final = 19899
"""Below the ports of gangs (host.ports) and the ports that Linux assigns to clients."""

_BACKLOG: Final = 1024
_STATUS_TIMEOUT: Final = 15.0
_POLL_INTERVAL: Final = 0.05
_INHERITED_VARIABLES: Final = frozenset(
    {"HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR", "TZ"}
)
"""Variables that Python needs; the rest of the environment may hold secrets."""


@dataclass(frozen=True)
class RouterStatus:
    """Status of a running router.

    `revision`: None without a route. `in_flight`: number of requests by revision. `waiting`: number
    of requests that no server has accepted yet.
    """

    address: str
    revision: int | None
    in_flight: Mapping[int, int]
    waiting: int


def ensure_router(  # noqa: PLR0913 (address, and limits of a new router)
    state_dir: Path,
    name: str,
    *,
    environment: Mapping[str, str],
    host: str = "",
    port: int | None = None,
    wait_timeout: float = WAIT_TIMEOUT,
    grace: float = SHUTDOWN_GRACE_SECONDS,
    max_body_bytes: int | None = None,
) -> str:
    """Return the deployment's URL once the router answers; start it if needed. Raise ServerError.

    Without `host` and `port` the deployment keeps its address. `wait_timeout` and `grace` in
    seconds and `max_body_bytes` of a request apply to a router that has to be started.
    """
    place = RouterFolder.for_deployment(state_dir, name)
    with place.start_lock():
        before = place.read_listen_address()
        wanted = _resolve_listen_address(before, host, port)
        if place.is_running():
            if query_router_status(state_dir, name, timeout=_STATUS_TIMEOUT) is not None:
                return _check_address_unchanged(place, wanted)
            _stop_process(place, timeout=STOP_TIMEOUT)
        if wanted is not None:
            place.write_listen_address(wanted)
        options = ["--wait", str(wait_timeout), "--grace", str(grace), "--host", host or LOOPBACK]
        if max_body_bytes is not None:
            options += ["--max-body-bytes", str(max_body_bytes)]
        try:
            return _start(place, options, environment)
        except ServerError:
            if wanted is not None:
                place.write_listen_address(before)
            raise


def stop_router(state_dir: Path, name: str, *, grace: float = SHUTDOWN_GRACE_SECONDS) -> bool:
    """Stop the router; requests in flight have `grace` seconds. Return False if none ran."""
    place = RouterFolder.for_deployment(state_dir, name)
    if not place.path.exists():
        return False
    with place.start_lock():
        return _stop_process(place, timeout=grace + STOP_TIMEOUT)


def query_router_status(
    state_dir: Path, name: str, *, timeout: float = _STATUS_TIMEOUT
) -> RouterStatus | None:
    """Read the router's status. None if it does not run or answer within `timeout` seconds."""
    place = RouterFolder.for_deployment(state_dir, name)
    deadline = time.monotonic() + timeout
    while place.is_running():
        listen = place.read_listen_address()
        status = _query_status(place, listen, deadline - time.monotonic()) if listen else None
        if status is not None or time.monotonic() > deadline:
            return status
        time.sleep(_POLL_INTERVAL)
    return None


def _resolve_listen_address(
    before: ListenAddress | None, host: str, port: int | None
) -> ListenAddress | None:
    """Return the address to listen on; None to keep the last one, or let the router choose."""
    if port is None:
        return ListenAddress(host, before.port) if host and before is not None else None
    if not 0 < port < 65536:
        raise ServerError(f"{port} is not a port.", next_step="Choose one from 1 to 65535.")
    return ListenAddress(host or (before.host if before else LOOPBACK), port)


def _check_address_unchanged(place: RouterFolder, requested: ListenAddress | None) -> str:
    listen = place.read_listen_address()
    if listen is None or (requested is not None and requested != listen):
        raise ServerError(
            f"The router of deployment {place.name!r} runs at another address already"
            f"{f', {listen.address}' if listen else ''}.",
            next_step="Use that one, or stop the router first.",
        )
    return listen.address


def _stop_process(place: RouterFolder, *, timeout: float) -> bool:
    router = place.read_process()
    return router is not None and router.stop(timeout=timeout)


def _start(place: RouterFolder, options: list[str], environment: Mapping[str, str]) -> str:
    module = [sys.executable, "-m", "prefect_bt.serving.router", *options]
    command = [*module, "--", str(place.state_dir), place.name]
    kept = {k: v for k, v in environment.items() if k in _INHERITED_VARIABLES}
    identity, process = start_process(command, log=place.log_file, environment=kept)

    def find_address() -> str:
        listen = place.read_listen_address()
        if listen is None or place.read_process() != identity:
            return ""
        return listen.address if _query_status(place, listen, _STATUS_TIMEOUT) else ""

    name = f"router of deployment {place.name!r}"
    return wait_until_ready(name, process, find_address, log=place.log_file)


def _query_status(
    place: RouterFolder, listen: ListenAddress, timeout: float
) -> RouterStatus | None:
    """Return None if nothing answers at the address, or another program."""
    answer = fetch_json(listen.address + STATUS_PATH, timeout=timeout)
    if answer.get("router") != place.id:
        return None
    in_flight = {int(revision): int(count) for revision, count in answer["in_flight"].items()}
    return RouterStatus(listen.address, answer["revision"], in_flight, int(answer["waiting"]))


# -- the port, which is chosen once, and kept ---------------------------------------------------


def open_listening_socket(place: RouterFolder, host: str) -> socket.socket:
    """Listen at the address of listen.json; without one choose a free port of `host` and store it.

    Raise ServerError if no socket can be opened.
    """
    known = place.read_listen_address()
    if known is not None:
        return _bind(place, known)
    if place.has_listen_file:
        raise ServerError(
            f"The address of deployment {place.name!r} cannot be read from listen.json.",
            next_step="Give its host and port.",
        )
    for port in _candidates(place):
        address = ListenAddress(host, port)
        try:
            found = _bind(place, address)
        except ServerError as error:
            if getattr(error.__cause__, "errno", None) != errno.EADDRINUSE:
                raise
        else:
            place.write_listen_address(address)
            return found
    raise ServerError(
        f"No port between {FIRST_PORT} and {LAST_PORT} is free for deployment {place.name!r}.",
        next_step="Choose a port for it.",
    )


def _bind(place: RouterFolder, address: ListenAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        # create_server adds the address to the text of an error, which has it already here.
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else error
        raise ServerError(
            f"Deployment {place.name!r} cannot listen at {address.host}:{address.port}: {reason}.",
            next_step="Stop the program that listens there, or choose another port (or host).",
        ) from error


def _candidates(place: RouterFolder) -> Iterator[int]:
    """Yield the ports of the range that no other deployment has, from one given by the name."""
    others = (p.read_listen_address() for p in RouterFolder.iter_all(place.state_dir) if p != place)
    taken = {other.port for other in others if other is not None}
    count = LAST_PORT - FIRST_PORT + 1
    start = zlib.crc32(place.id.encode()) % count
    for step in range(count):
        port = FIRST_PORT + (start + step) % count
        if port not in taken:
            yield port
