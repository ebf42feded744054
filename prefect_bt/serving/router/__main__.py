"""The router as a process: `python -m prefect_bt.serving.router STATE_DIR NAME`."""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
from contextlib import suppress
from pathlib import Path

from prefect_bt.errors import PrefectBtError
from prefect_bt.host.service import EXIT_EXPLAINED, LOOPBACK, current_process
from prefect_bt.serving.router.deployment_folder import RouterFolder
from prefect_bt.serving.router.process import (
    SHUTDOWN_GRACE_SECONDS,
    WAIT_TIMEOUT,
    open_listening_socket,
)
from prefect_bt.serving.router.request_body import MAX_BODY_BYTES
from prefect_bt.serving.router.router import serve


def main() -> None:
    parser = argparse.ArgumentParser(prog="prefect_bt.serving.router")
    parser.add_argument("state_dir", type=Path)
    parser.add_argument("name")
    parser.add_argument("--host", default=LOOPBACK, help="where to listen, if not known yet")
    parser.add_argument("--wait", type=float, default=WAIT_TIMEOUT, help="seconds for a server")
    parser.add_argument("--grace", type=float, default=SHUTDOWN_GRACE_SECONDS, help="in seconds")
    parser.add_argument("--max-body-bytes", type=int, default=MAX_BODY_BYTES)
    options = parser.parse_args()
    try:
        folder = RouterFolder.for_deployment(options.state_dir, options.name)
        listening = open_listening_socket(folder, options.host)
    except PrefectBtError as error:
        print(error)
        sys.exit(EXIT_EXPLAINED)
    folder.write_process(current_process())
    _raise_descriptor_limit()
    limits = (options.wait, options.grace, options.max_body_bytes)
    asyncio.run(serve(folder, listening, *limits))


def _raise_descriptor_limit() -> None:
    """Allow as many connections as possible: each request in flight has two."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
