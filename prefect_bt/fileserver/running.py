"""Find the file server of a store, start one where none answers, stop it.

A pid alone may belong to another process by now: a server counts while its process began when it
says, and it answers with the name of the store's place.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from prefect_bt.errors import ServerError
from prefect_bt.fileserver.place import Known, Place
from prefect_bt.servers import Daemon, process_started, start_daemon

HOST: Final = "127.0.0.1"
_START_PATIENCE: Final = 60.0
_STOP_PATIENCE: Final = 10.0
_ANSWER_PATIENCE: Final = 15.0
_WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 (an address that a user may name)
_BACKLOG: Final = 128


def ensure(place: Place, *, environment: Mapping[str, str]) -> Known:
    """The running server of the store, started if there is none. ServerError when it cannot be."""
    with place.alone():
        known = place.known()
        if known is not None and known.daemon.alive:
            if answers(known, place):
                return known
            if known.foreground:
                raise ServerError(
                    f"Process {known.pid} serves this store at {known.base}, but does not answer.",
                    next_step="End it (prefect-bt down), and try again.",
                )
            known.daemon.stop(patience=_STOP_PATIENCE)
        return _start(place, environment)


def stop(place: Place) -> Known | None:
    """The server that was stopped; None when none ran."""
    with place.alone():
        known = place.known()
        if known is None or not known.daemon.stop(patience=_STOP_PATIENCE):
            return None
        return known


def stop_all(state_dir: Path) -> list[Known]:
    """Every file server that this machine's state folder knows of."""
    return [known for place in Place.all_in(state_dir) if (known := stop(place))]


def settle_here(place: Place, *, host: str, port: int | None, base: str) -> socket.socket:
    """Make this process the store's server: a socket that listens, and the note for others.

    One that was started in the background gives way; another in the foreground is a ServerError.
    Without `port` the last one is taken, so that old addresses find us. `base` may be "".
    """
    with place.alone():
        known = place.known()
        if known is not None and known.daemon.alive:
            if known.foreground:
                raise ServerError(
                    f"Process {known.pid} serves this store already, at {known.base}.",
                    next_step="Use that one, or end it first (prefect-bt down).",
                )
            known.daemon.stop(patience=_STOP_PATIENCE)
        listening = listen(host, port, last=known.port if known else 0)
        announce(place, listening, host=host, base=base, foreground=True)
    return listening


def listen(host: str, port: int | None, *, last: int) -> socket.socket:
    """`port`; else the `last` one, or any where that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tried = [last, 0] if port is None else [port]
    while True:
        wanted = tried.pop(0)
        try:
            return socket.create_server((host, wanted), family=family, backlog=_BACKLOG)
        except OSError as error:
            if not tried:
                raise ServerError(
                    f"Cannot listen at {host}:{wanted}: {error.strerror or error}.",
                    next_step="Take another --port, or a --host of this machine.",
                ) from error


def announce(
    place: Place, listening: socket.socket, *, host: str, base: str, foreground: bool
) -> None:
    """Note this process as the server."""
    port = int(listening.getsockname()[1])
    place.write(
        Known(
            base=base or f"http://{_reachable(host)}:{port}",
            host=host,
            port=port,
            pid=os.getpid(),
            started=process_started(os.getpid()),
            root=str(place.root),
            foreground=foreground,
        )
    )


def is_wildcard(host: str) -> bool:
    """Whether `host` means every address of this machine, and is none itself."""
    return host in _WILDCARDS


def is_this_machine_only(host: str) -> bool:
    """Whether what listens at `host` cannot be reached from elsewhere."""
    return host in {"localhost", "::1"} or host.startswith("127.")


def answers(known: Known, place: Place) -> bool:
    """Whether the server serves this store."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    host = HOST if known.host in {"", "0.0.0.0"} else "::1" if known.host == "::" else known.host  # noqa: S104
    try:
        with direct.open(
            f"http://{_reachable(host)}:{known.port}/", timeout=_ANSWER_PATIENCE
        ) as answer:
            return json.load(answer) == {"prefect-bt": place.id}
    except (OSError, ValueError):
        return False


def _reachable(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _start(place: Place, environment: Mapping[str, str]) -> Known:
    place.secret()
    command = [sys.executable, "-m", "prefect_bt.fileserver", str(place.root), str(place.folder)]
    daemon, process = start_daemon(command, log=place.log, environment=environment)
    deadline = time.monotonic() + _START_PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        known = place.known()
        if known is not None and known.pid == daemon.pid and answers(known, place):
            return known
        time.sleep(0.05)
    raise _did_not_start(place, daemon)


def _did_not_start(place: Place, daemon: Daemon) -> ServerError:
    daemon.stop(patience=_STOP_PATIENCE)
    last = " | ".join(place.log.read_text(errors="replace").split("\n")[-6:]).strip(" |")
    return ServerError(f"The file server did not start: {last}", next_step=f"See {place.log}.")
