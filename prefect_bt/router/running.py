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
from prefect_bt.router.place import GRACE, HOST, PATIENCE, STATUS_PATH, TOLD, Listen, RouterPlace
from prefect_bt.servers import start_daemon

_START_PATIENCE: Final = 60.0
_STOP_PATIENCE: Final = 10.0
_ANSWER_PATIENCE: Final = 15.0
_BETWEEN_LOOKS: Final = 0.05
_KEPT_VARIABLES: Final = frozenset(
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
    patience: float = PATIENCE,
    grace: float = GRACE,
    most_bytes: int | None = None,
) -> str:
    """The address of the deployment, which answers by then. ServerError when it cannot be had.

    Without `host` and `port` it is the one that it always had. `patience` and `grace`, in seconds,
    and `most_bytes` of a request are for a router that has to be started.
    """
    place = RouterPlace.of(state_dir, name)
    with place.alone():
        before = place.listen()
        wanted = _wanted(before, host, port)
        if place.is_run():
            if router_status(state_dir, name, patience=_ANSWER_PATIENCE) is not None:
                return _unchanged(place, wanted)
            _end_deaf(place)
        if wanted is not None:
            place.set_listen(wanted)
        options = ["--patience", str(patience), "--grace", str(grace), "--host", host or HOST]
        if most_bytes is not None:
            options += ["--most-bytes", str(most_bytes)]
        own = ["--", str(place.state_dir), name]
        command = [sys.executable, "-m", "prefect_bt.router", *options, *own]
        try:
            return _start(place, command, environment)
        except ServerError:
            if wanted is not None:
                place.set_listen(before)
            raise


def stop_router(state_dir: Path, name: str, *, grace: float = GRACE) -> bool:
    """Requests in flight have `grace` seconds. False when none ran."""
    place = RouterPlace.of(state_dir, name)
    if not place.folder.exists():
        return False
    with place.alone():
        running = place.running()
        if running is None or not place.is_run():
            return False
        return running.daemon.stop(patience=grace + _STOP_PATIENCE)


def router_status(
    state_dir: Path, name: str, *, patience: float = _ANSWER_PATIENCE
) -> RouterStatus | None:
    """None when it does not run, or does not answer within `patience` seconds."""
    place = RouterPlace.of(state_dir, name)
    deadline = time.monotonic() + patience
    while place.is_run():
        listen = place.listen()
        told = _asked(place, listen, deadline - time.monotonic()) if listen is not None else None
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
        time.sleep(_BETWEEN_LOOKS)
    return None


def _wanted(before: Listen | None, host: str, port: int | None) -> Listen | None:
    """None: as before, or whatever port the router finds."""
    if port is None:
        return Listen(host, before.port) if host and before is not None else None
    if not 0 < port < 65536:
        raise ServerError(f"{port} is no port.", next_step="Choose one from 1 to 65535.")
    return Listen(host or (before.host if before else HOST), port)


def _unchanged(place: RouterPlace, wanted: Listen | None) -> str:
    listen = place.listen()
    if listen is None or (wanted is not None and wanted != listen):
        raise ServerError(
            f"The router of deployment {place.name!r} runs at another address already"
            f"{f', {listen.address}' if listen else ''}.",
            next_step="Use that one, or stop the router first.",
        )
    return listen.address


def _end_deaf(place: RouterPlace) -> None:
    """Of a router that holds the lock and does not answer."""
    running = place.running()
    if running is not None:
        running.daemon.stop(patience=_STOP_PATIENCE)
    if place.is_run():
        raise ServerError(
            f"A process routes deployment {place.name!r}, but does not answer.",
            next_step=f"End it, and try again. See {place.log}.",
        )


def _start(place: RouterPlace, command: list[str], environment: Mapping[str, str]) -> str:
    kept = {k: v for k, v in environment.items() if k in _KEPT_VARIABLES}
    daemon, process = start_daemon(command, log=place.log, environment=kept)
    deadline = time.monotonic() + _START_PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        listen, running = place.listen(), place.running()
        ours = running is not None and running.pid == daemon.pid
        if ours and listen is not None and _asked(place, listen, _ANSWER_PATIENCE) is not None:
            return listen.address
        time.sleep(_BETWEEN_LOOKS)
    daemon.stop(patience=_STOP_PATIENCE)
    last = place.log.read_text(errors="replace").strip().rpartition("\n")[2]
    if process.poll() == TOLD:
        raise ServerError(last)
    raise ServerError(
        f"The router of deployment {place.name!r} did not start: {last}",
        next_step=f"See {place.log}.",
    )


def _asked(place: RouterPlace, listen: Listen, seconds: float) -> dict[str, Any] | None:
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
