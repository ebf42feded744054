"""A Prefect server as `prefect server start` starts it, without a password."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.ports import free_port

PATIENCE = 900.0


@contextmanager
def plain_server(home: Path) -> Generator[str]:
    """Start a server; yield its API URL."""
    port = free_port()
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT")}
    quiet = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1"]
    home.mkdir(parents=True, exist_ok=True)
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            env={**kept, **quiet, "PREFECT_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        api_url = f"http://127.0.0.1:{port}/api"
        _await(api_url, process, home / "server.log")
        yield api_url
    finally:
        process.kill()
        process.wait()


def _await(api_url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{api_url}/health", timeout=60).is_success:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise AssertionError(log.read_text(errors="replace")[-4000:])
