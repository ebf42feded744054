"""Find the file server of a store, start one where none answers, stop it.

A server counts as running while its process lives and it answers with the store's id.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from prefect_bt.errors import ServerError
from prefect_bt.file_server.server_folder import FileServerFolder, ServerRecord, find_local_root
from prefect_bt.host.service import (
    STOP_TIMEOUT,
    current_process,
    fetch_json,
    local_url,
    start_process,
    wait_until_ready,
)

_STATUS_TIMEOUT: Final = 15.0
_BACKLOG: Final = 128


def ensure_server(place: FileServerFolder, *, environment: Mapping[str, str]) -> ServerRecord:
    """Return the running server of the store; start one if there is none. Raise ServerError."""
    with place.start_lock():
        known = place.read_record()
        if known is not None and known.process.is_alive:
            if _is_responding(known, place):
                return known
            if known.foreground:
                raise ServerError(
                    f"Process {known.process.pid} serves this store at {known.base}, but does not "
                    "answer.",
                    next_step="Stop it (prefect-bt down), and try again.",
                )
            known.process.stop(timeout=STOP_TIMEOUT)
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
    """Return the server that was stopped; None if none ran."""
    with place.start_lock():
        known = place.read_record()
        return known if known and known.process.stop(timeout=STOP_TIMEOUT) else None


def stop_all_servers(state_dir: Path) -> list[ServerRecord]:
    """Stop every file server of this machine's state folder."""
    stopped = (stop_server(place) for place in FileServerFolder.iter_all(state_dir))
    return [known for known in stopped if known]


def become_server(
    place: FileServerFolder, *, host: str, port: int | None, base: str
) -> socket.socket:
    """Make this process the store's server; return the socket that listens.

    A server in the background is stopped; another in the foreground is a ServerError. Without
    `port` the last port is taken, so that old URLs work. `base` may be "".
    """
    with place.start_lock():
        known = place.read_record()
        if known is not None and known.process.is_alive:
            if known.foreground:
                raise ServerError(
                    f"Process {known.process.pid} serves this store already, at {known.base}.",
                    next_step="Use that one, or stop it first (prefect-bt down).",
                )
            known.process.stop(timeout=STOP_TIMEOUT)
        listening = create_listener(host, port, preferred=known.port if known else 0)
        register_server(place, listening, host=host, base=base, foreground=True)
    return listening


def create_listener(host: str, port: int | None, *, preferred: int) -> socket.socket:
    """Listen at `port`; without it at the `preferred` port, or at any if that is taken."""
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
    """Record this process as the server."""
    port = int(listening.getsockname()[1])
    base = base or local_url(host, port)
    record = ServerRecord(base, host, port, current_process(), str(place.root), foreground)
    place.write_record(record)


def _is_responding(record: ServerRecord, place: FileServerFolder) -> bool:
    answer = fetch_json(f"{local_url(record.host, record.port)}/", timeout=_STATUS_TIMEOUT)
    return answer == {"prefect-bt": place.store_id}


def _start(place: FileServerFolder, environment: Mapping[str, str]) -> ServerRecord:
    place.ensure_signing_key()
    command = [sys.executable, "-m", "prefect_bt.file_server", str(place.root), str(place.path)]
    identity, process = start_process(command, log=place.log_file, environment=environment)

    def find_started() -> ServerRecord | None:
        known = place.read_record()
        started = known is not None and known.process == identity and _is_responding(known, place)
        return known if started else None

    return wait_until_ready("file server", process, find_started, log=place.log_file)
