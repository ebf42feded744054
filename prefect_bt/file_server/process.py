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
from prefect_bt.file_server.server_folder import FileServerFolder, ServerRecord, find_local_root
from prefect_bt.host.daemon import Daemon, read_start_time, start_daemon

LOOPBACK: Final = "127.0.0.1"
_START_TIMEOUT: Final = 60.0
_STOP_TIMEOUT: Final = 10.0
_STATUS_TIMEOUT: Final = 15.0
_WILDCARDS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 (an address that a user may name)
_BACKLOG: Final = 128


def ensure_server(place: FileServerFolder, *, environment: Mapping[str, str]) -> ServerRecord:
    """The running server of the store, started if there is none. ServerError when it cannot be."""
    with place.start_lock():
        known = place.read_record()
        if known is not None and known.daemon.is_alive:
            if is_responding(known, place):
                return known
            if known.foreground:
                raise ServerError(
                    f"Process {known.pid} serves this store at {known.base}, but does not answer.",
                    next_step="Stop it (prefect-bt down), and try again.",
                )
            known.daemon.stop(timeout=_STOP_TIMEOUT)
        return _start(place, environment)


def find_server_folder(store_url: str, state_dir: Path) -> FileServerFolder | None:
    """Return the folder of the store's file server; None for a bucket, which needs none."""
    root = find_local_root(store_url)
    return FileServerFolder.for_store(root, state_dir) if root else None


def restart_server(
    store_url: str, state_dir: Path, environment: Mapping[str, str]
) -> ServerRecord | None:
    """Start the store's file server if it ever ran, so that its URLs work again."""
    place = find_server_folder(store_url, state_dir)
    return ensure_server(place, environment=environment) if place and place.read_record() else None


def stop_server(place: FileServerFolder) -> ServerRecord | None:
    """The server that was stopped; None when none ran."""
    with place.start_lock():
        known = place.read_record()
        if known is None or not known.daemon.stop(timeout=_STOP_TIMEOUT):
            return None
        return known


def stop_all_servers(state_dir: Path) -> list[ServerRecord]:
    """Every file server that this machine's state folder knows of."""
    return [
        known for place in FileServerFolder.iter_all(state_dir) if (known := stop_server(place))
    ]


def become_server(
    place: FileServerFolder, *, host: str, port: int | None, base: str
) -> socket.socket:
    """Make this process the store's server: a socket that listens, and the note for others.

    One that was started in the background gives way; another in the foreground is a ServerError.
    Without `port` the last one is taken, so that old addresses find us. `base` may be "".
    """
    with place.start_lock():
        known = place.read_record()
        if known is not None and known.daemon.is_alive:
            if known.foreground:
                raise ServerError(
                    f"Process {known.pid} serves this store already, at {known.base}.",
                    next_step="Use that one, or stop it first (prefect-bt down).",
                )
            known.daemon.stop(timeout=_STOP_TIMEOUT)
        listening = create_listener(host, port, preferred=known.port if known else 0)
        register_server(place, listening, host=host, base=base, foreground=True)
    return listening


def create_listener(host: str, port: int | None, *, preferred: int) -> socket.socket:
    """`port`; else the `preferred` one, or any where that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tried = [preferred, 0] if port is None else [port]
    while True:
        wanted = tried.pop(0)
        try:
            return socket.create_server((host, wanted), family=family, backlog=_BACKLOG)
        except OSError as error:
            if not tried:
                raise ServerError(
                    f"Cannot listen at {host}:{wanted}: {error.strerror or error}.",
                    next_step="Choose another --port, or a --host of this machine.",
                ) from error


def register_server(
    place: FileServerFolder, listening: socket.socket, *, host: str, base: str, foreground: bool
) -> None:
    """Note this process as the server."""
    port = int(listening.getsockname()[1])
    place.write_record(
        ServerRecord(
            base=base or f"http://{_format_host(host)}:{port}",
            host=host,
            port=port,
            pid=os.getpid(),
            started=read_start_time(os.getpid()),
            root=str(place.root),
            foreground=foreground,
        )
    )


def is_wildcard(host: str) -> bool:
    """Whether `host` means every address of this machine, and is none itself."""
    return host in _WILDCARDS


def is_loopback(host: str) -> bool:
    """Whether what listens at `host` cannot be reached from elsewhere."""
    return host in {"localhost", "::1"} or host.startswith("127.")


def is_responding(record: ServerRecord, place: FileServerFolder) -> bool:
    """Whether the server serves this store."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    host = (
        LOOPBACK
        if record.host in {"", "0.0.0.0"}  # noqa: S104
        else "::1"
        if record.host == "::"
        else record.host
    )
    try:
        with direct.open(
            f"http://{_format_host(host)}:{record.port}/", timeout=_STATUS_TIMEOUT
        ) as answer:
            return json.load(answer) == {"prefect-bt": place.store_id}
    except (OSError, ValueError):
        return False


def _format_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _start(place: FileServerFolder, environment: Mapping[str, str]) -> ServerRecord:
    place.ensure_signing_key()
    command = [sys.executable, "-m", "prefect_bt.file_server", str(place.root), str(place.path)]
    daemon, process = start_daemon(command, log=place.log_file, environment=environment)
    deadline = time.monotonic() + _START_TIMEOUT
    while process.poll() is None and time.monotonic() < deadline:
        known = place.read_record()
        if known is not None and known.pid == daemon.pid and is_responding(known, place):
            return known
        time.sleep(0.05)
    raise _start_error(place, daemon)


def _start_error(place: FileServerFolder, daemon: Daemon) -> ServerError:
    daemon.stop(timeout=_STOP_TIMEOUT)
    last = " | ".join(place.log_file.read_text(errors="replace").split("\n")[-6:]).strip(" |")
    return ServerError(f"The file server did not start: {last}", next_step=f"See {place.log_file}.")
