"""Start the router of a deployment where none answers, ask it, stop it."""

from __future__ import annotations

import http.client
import json
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from prefect_bt.errors import ServerError
from prefect_bt.host.daemon import start_daemon
from prefect_bt.serving.router.deployment_folder import (
    EXIT_EXPLAINED,
    HOST,
    SHUTDOWN_GRACE_SECONDS,
    STATUS_PATH,
    WAIT_TIMEOUT,
    ListenAddress,
    RouterFolder,
)

_START_TIMEOUT: Final = 60.0
_STOP_TIMEOUT: Final = 10.0
_STATUS_TIMEOUT: Final = 15.0
_POLL_INTERVAL: Final = 0.05
_INHERITED_VARIABLES: Final = frozenset(
    {"HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TMPDIR", "TZ"}
)
"""What a Python needs; the rest of the environment may hold secrets."""


@dataclass(frozen=True)
class RouterStatus:
    """`revision` is None while there is no route. `in_flight`: requests of a revision, none if 0.

    `waiting`: requests that no server has taken yet.
    """

    address: str
    revision: int | None
    models: tuple[str, ...]
    in_flight: Mapping[int, int]
    waiting: int


def ensure_router(  # noqa: PLR0913 (where it listens, and how long it waits)
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
    """The address of the deployment, which answers by then. ServerError when it cannot be had.

    Without `host` and `port` it is the one that it always had. `wait_timeout` and `grace`, in
    seconds, and `max_body_bytes` of a request are for a router that has to be started.
    """
    place = RouterFolder.for_deployment(state_dir, name)
    with place.start_lock():
        before = place.read_listen_address()
        wanted = _resolve_listen_address(before, host, port)
        if place.is_running():
            if query_router_status(state_dir, name, timeout=_STATUS_TIMEOUT) is not None:
                return _check_address_unchanged(place, wanted)
            _kill_unresponsive(place)
        if wanted is not None:
            place.write_listen_address(wanted)
        options = ["--patience", str(wait_timeout), "--grace", str(grace), "--host", host or HOST]
        if max_body_bytes is not None:
            options += ["--most-bytes", str(max_body_bytes)]
        own = ["--", str(place.state_dir), name]
        command = [sys.executable, "-m", "prefect_bt.serving.router", *options, *own]
        try:
            return _start(place, command, environment)
        except ServerError:
            if wanted is not None:
                place.write_listen_address(before)
            raise


def stop_router(state_dir: Path, name: str, *, grace: float = SHUTDOWN_GRACE_SECONDS) -> bool:
    """Requests in flight have `grace` seconds. False when none ran."""
    place = RouterFolder.for_deployment(state_dir, name)
    if not place.path.exists():
        return False
    with place.start_lock():
        running = place.read_process()
        if running is None or not place.is_running():
            return False
        return running.daemon.stop(timeout=grace + _STOP_TIMEOUT)


def query_router_status(
    state_dir: Path, name: str, *, timeout: float = _STATUS_TIMEOUT
) -> RouterStatus | None:
    """None when it does not run, or does not answer within `timeout` seconds."""
    place = RouterFolder.for_deployment(state_dir, name)
    deadline = time.monotonic() + timeout
    while place.is_running():
        listen = place.read_listen_address()
        told = (
            _query_status(place, listen, deadline - time.monotonic())
            if listen is not None
            else None
        )
        if listen is not None and told is not None:
            return RouterStatus(
                address=listen.address,
                revision=told["revision"],
                models=tuple(told["models"]),
                in_flight={int(k): int(n) for k, n in told["in_flight"].items()},
                waiting=int(told["waiting"]),
            )
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_INTERVAL)
    return None


def _resolve_listen_address(
    before: ListenAddress | None, host: str, port: int | None
) -> ListenAddress | None:
    """None: as before, or whatever port the router finds."""
    if port is None:
        return ListenAddress(host, before.port) if host and before is not None else None
    if not 0 < port < 65536:
        raise ServerError(f"{port} is not a port.", next_step="Choose one from 1 to 65535.")
    return ListenAddress(host or (before.host if before else HOST), port)


def _check_address_unchanged(place: RouterFolder, requested: ListenAddress | None) -> str:
    listen = place.read_listen_address()
    if listen is None or (requested is not None and requested != listen):
        raise ServerError(
            f"The router of deployment {place.name!r} runs at another address already"
            f"{f', {listen.address}' if listen else ''}.",
            next_step="Use that one, or stop the router first.",
        )
    return listen.address


def _kill_unresponsive(place: RouterFolder) -> None:
    """Of a router that holds the lock and does not answer."""
    running = place.read_process()
    if running is not None:
        running.daemon.stop(timeout=_STOP_TIMEOUT)
    if place.is_running():
        raise ServerError(
            f"A process routes deployment {place.name!r}, but does not answer.",
            next_step=f"Stop it, and try again. See {place.log_file}.",
        )


def _start(place: RouterFolder, command: list[str], environment: Mapping[str, str]) -> str:
    kept = {k: v for k, v in environment.items() if k in _INHERITED_VARIABLES}
    daemon, process = start_daemon(command, log=place.log_file, environment=kept)
    deadline = time.monotonic() + _START_TIMEOUT
    while process.poll() is None and time.monotonic() < deadline:
        listen, running = place.read_listen_address(), place.read_process()
        ours = running is not None and running.pid == daemon.pid
        if (
            ours
            and listen is not None
            and _query_status(place, listen, _STATUS_TIMEOUT) is not None
        ):
            return listen.address
        time.sleep(_POLL_INTERVAL)
    daemon.stop(timeout=_STOP_TIMEOUT)
    last = place.log_file.read_text(errors="replace").strip().rpartition("\n")[2]
    if process.poll() == EXIT_EXPLAINED:
        raise ServerError(last)
    raise ServerError(
        f"The router of deployment {place.name!r} did not start: {last}",
        next_step=f"See {place.log_file}.",
    )


def _query_status(
    place: RouterFolder, listen: ListenAddress, seconds: float
) -> dict[str, Any] | None:
    """What the router tells; None when nobody answers there, or somebody else."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(listen.address + STATUS_PATH, timeout=max(seconds, 0.1)) as answer:
            told: Any = json.load(answer)
    except (OSError, ValueError, http.client.HTTPException):
        return None
    if not isinstance(told, dict):
        return None
    facts = cast("dict[str, Any]", told)
    return facts if facts.get("router") == place.id else None
