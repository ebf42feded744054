"""Where `prefect-bt up` left a local Prefect server: one small file, trusted only while it answers.

<state dir>/server.json    {"api_url", "ui_url", "server_pid", "server_started", "worker_pid",
                            "worker_started", "caretaker_pid", "caretaker_started"}; the worker's
                            are null when there is none; "api_pid", "api_started" with `--api`
<state dir>/server-auth    the server's password (see prefect_bt.local_server.password)
<state dir>/server.log, worker.log, api.log, caretaker.log     what they print

A pid alone may belong to another process by now, so each is kept with its process's start time and
counts only while both agree.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prefect_bt.host.processes import ProcessIdentity


def server_file(state_dir: Path) -> Path:
    return state_dir / "server.json"


def read_server(state_dir: Path) -> dict[str, Any] | None:
    """Return the document that `up` wrote; None if there is none."""
    try:
        return dict(json.loads(server_file(state_dir).read_text()))
    except (OSError, ValueError):
        return None


def write_server(state_dir: Path, document: Mapping[str, Any]) -> None:
    """Replace the file in one step."""
    staged = server_file(state_dir).with_suffix(".new")
    staged.write_text(json.dumps(document, indent=2) + "\n")
    staged.replace(server_file(state_dir))


def local_server_url(state_dir: Path) -> str:
    """Return the API URL of the server that `up` started, if it lives and listens; else "".

    After its end, another user of the machine may listen at its port.
    """
    known = read_server(state_dir)
    if known is None or not get_process(known, "server").is_alive:
        return ""
    url = str(known["api_url"])
    address = urlsplit(url)
    try:
        with socket.create_connection((address.hostname or "", address.port or 0), timeout=1):
            return url
    except OSError:
        return ""


def wait_for_server_url(state_dir: Path, *, timeout: float) -> str:
    """Return the URL; wait up to `timeout` seconds for a server that the watchdog restarts."""
    deadline = time.monotonic() + timeout
    while not (url := local_server_url(state_dir)):
        watchdog = get_process(read_server(state_dir) or {}, "caretaker")
        if not watchdog.is_alive or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    return url


def get_process(document: Mapping[str, Any], role: str) -> ProcessIdentity:
    """Return the process of a role of local_server.server; a missing one is not alive."""
    pid, started = document.get(f"{role}_pid"), document.get(f"{role}_started")
    if isinstance(pid, int) and isinstance(started, int):
        return ProcessIdentity(pid, started)
    return ProcessIdentity(0, 0)
